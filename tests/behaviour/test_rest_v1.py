"""The REST interface under /api/v1: its shapes, that it keeps to its OpenAPI document whatever comes, and who may ask."""

import asyncio
import contextlib
import ssl
import warnings
from collections import Counter

import httpx
import jsonschema
import pytest
import schemathesis
import trustme
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from bus import subjects
from bus.kube.errors import KubeUnreachableError
from consumers.allocator.inspector.service import Inspector
from consumers.mutator.service import Mutator
from deploy.cli.main import main
from producers.gateway.access import FRESH_S, DeniedError, Reviews, Tokens
from producers.gateway.openapi import DOCUMENT, OPERATIONS
from producers.gateway.service import GatewayService
from producers.gateway.sockets import ListenError
from producers.gateway.tls import Certificate
from schemas.decision import GpuGrant
from schemas.ledger import Allocation, NodeRecord
from tests.behaviour.test_admission import issue
from tests.behaviour.test_rest import CONTEXT, GIB, POD, YAML, announce, running, say
from tests.conftest import eventually

TOKEN = "a-token-of-thirty-two-characters"


@pytest.fixture
async def client(bus):
    service = GatewayService(bus, None, host="127.0.0.1", port=0, rest=("127.0.0.1", 0))
    async with (
        running(service),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.rest_port}", timeout=20) as found,
    ):
        yield found


async def hold(bus, node, *pods):
    grant = GpuGrant(uuid=f"GPU-{node}-0", index=0, tflops_milli=10_000, vram_bytes=GIB)
    allocations = tuple(
        Allocation(pod_uid=f"u-{name}", namespace=namespace, name=name, pool="shared", gpus=(grant,))
        for namespace, name in pods
    )
    await say(bus, subjects.ledger_node(node), NodeRecord(node=node, txn="t", changes=(), allocations=allocations))


async def test_pools_nodes_and_allocations_are_told_part_by_part(bus, client):
    await announce(bus)
    await hold(bus, "big", ("ml", "b"), ("ml", "a"), ("web", "c"))
    inspector = Inspector(bus)
    async with running(inspector):
        await eventually(lambda: inspector.view.cluster.ledger_seq)
        (pool,) = (await client.get("/api/v1/pools")).json()["items"]
        assert (pool["name"], pool["placement"]) == ("shared", "NodeCompactGPULowLoad")
        capacity = pool["capacity"]
        assert (capacity["nodes"], capacity["gpus"], capacity["pods"]) == (2, 4, 3)
        assert capacity["granted_vram_bytes"] == 3 * GIB

        first = (await client.get("/api/v1/nodes", params={"limit": 1})).json()
        assert ([one["name"] for one in first["items"]], first["next"]) == (["big"], "big")
        assert first["items"][0]["status"] == "ready"
        assert first["items"][0]["gpus"][0]["free_vram_bytes"] == 77 * GIB
        second = (await client.get("/api/v1/nodes", params={"limit": 1, "after": first["next"]})).json()
        assert ([one["name"] for one in second["items"]], second["next"]) == (["small"], "")
        assert (await client.get("/api/v1/nodes", params={"pool": "other"})).json()["items"] == []

        held = (await client.get("/api/v1/allocations")).json()
        assert [(one["namespace"], one["name"]) for one in held["items"]] == [("ml", "a"), ("ml", "b"), ("web", "c")]
        assert held["sequences"]["ledger"] > 0
        narrowed = (await client.get("/api/v1/allocations", params={"namespace": "ml", "node": "big"})).json()
        assert [one["name"] for one in narrowed["items"]] == ["a", "b"]
        part = (await client.get("/api/v1/allocations?limit=2")).json()
        rest = (await client.get("/api/v1/allocations", params={"after": part["next"]})).json()
        assert [one["name"] for one in rest["items"]] == ["c"]


async def test_a_simulation_says_where_or_what_refused_it(bus, client):
    await announce(bus)
    async with running(Mutator(bus, "m", lambda: CONTEXT), Inspector(bus)):
        found = (await client.post("/api/v1/simulate", content=POD, headers=YAML)).json()
        assert (found["fits"], found["decision"]["node"], found["decision"]["name"]) == (True, "big", "test-pod")
        assert found["request"]["pool"] == "shared"
        large = await client.post("/api/v1/simulate", content=POD.replace("16Gi", "100Gi"), headers=YAML)
        refused = large.json()
        assert not refused["fits"]
        assert sum(one["gpu_count"] for one in refused["lost"]) == 4
        assert {name for one in refused["lost"] for name in one["nodes"]} == {"big", "small"}
        assert all(one["meaning"] and one["help"] for one in refused["lost"])


@pytest.mark.parametrize(
    ("query", "field", "value"),
    [
        ("limit=0", "limit", "0"),
        ("limit=ten", "limit", "ten"),
        ("limit=1&limit=2", "limit", "2"),
        ("pool=A%20B", "pool", "A B"),
        ("pools=x", "pools", "x"),
        ("after=" + "x" * 2000, "after", "x" * 253),
    ],
)
async def test_what_is_no_parameter_is_refused_with_field_value_and_fix(client, query, field, value):
    answer = await client.get(f"/api/v1/nodes?{query}")
    problem = answer.json()
    assert (answer.status_code, problem["field"], problem["value"]) == (400, field, value)
    assert problem["fix"] in problem["error"]


async def test_the_document_is_served_and_names_every_path(client):
    document = (await client.get(DOCUMENT)).json()
    assert set(document["paths"]) == {DOCUMENT, *(one.path for one in OPERATIONS)}
    for path in document["paths"].values():
        for operation in path.values():
            assert {"401", "403", "405", "421", "503"} <= set(operation["responses"]), "whoever is asked may refuse"
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_no_answer_has_a_field_that_the_document_does_not_name(bus, client):
    """Every shape with something in it: a pod that fits and one that does not, GPUs that are held."""
    await announce(bus)
    await hold(bus, "big", ("ml", "a"))
    inspector = Inspector(bus)
    async with running(Mutator(bus, "m", lambda: CONTEXT), inspector):
        await eventually(lambda: inspector.view.cluster.ledger_seq)
        document = (await client.get(DOCUMENT)).json()
        for schema in document["components"]["schemas"].values():
            if schema.get("properties") and schema is not document["components"]["schemas"]["Pod"]:
                schema["additionalProperties"] = False
        for one in OPERATIONS:
            bodies = (POD, POD.replace("16Gi", "100Gi")) if one.method == "post" else (None,)
            for body in bodies:
                answer = await client.request(one.method, one.path, content=body, headers=YAML)
                response = document["paths"][one.path][one.method]["responses"]["200"]
                schema = {"components": document["components"], **response["content"]["application/json"]["schema"]}
                jsonschema.validate(answer.json(), schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
async def test_whatever_is_asked_is_answered_as_the_document_says(bus, client):
    """Requests made from the document, right ones and wrong ones: no failure of the server, no other shape, no hanging."""
    await announce(bus)
    await hold(bus, "big", ("ml", "a"))
    async with running(Mutator(bus, "m", lambda: CONTEXT), Inspector(bus)):
        codes = await asyncio.to_thread(play, f"{client.base_url}{DOCUMENT}")
    assert {code for code in codes if code >= 500} == set()
    assert codes[200] > 20
    assert sum(codes.values()) - codes[200] > 20


def play(url):
    """Return how often each code came."""
    codes = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that play
        schema = schemathesis.openapi.from_url(url)
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in schemathesis.GenerationMode:

                @given(case=operation.as_strategy(generation_mode=mode))
                @settings(
                    max_examples=15,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                def one(case):
                    response = case.call(timeout=10, headers={"Host": "localhost"})
                    codes[response.status_code] += 1
                    checks = [
                        not_a_server_error,
                        status_code_conformance,
                        content_type_conformance,
                        response_schema_conformance,
                    ]
                    case.validate_response(response, checks=checks)
                    assert "Traceback" not in response.text

                with contextlib.suppress(Unsatisfiable):  # of what takes no parameters nothing wrong can be made
                    one()
    return codes


# Who may ask


async def test_with_a_file_of_tokens_nobody_is_answered_without_one(bus, tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# tools\n{TOKEN},grafana\n")
    service = GatewayService(bus, None, host="127.0.0.1", port=0, rest=("127.0.0.1", 0), access=Tokens(file))
    url = f"http://127.0.0.1:{service.rest_port}"
    async with running(service, Inspector(bus)), httpx.AsyncClient(base_url=url, timeout=20) as client:

        async def asked(header):
            headers = {"Authorization": header} if header else {}
            answer = await client.get("/api/v1/pools", headers={"Host": "gpubus.example", **headers})
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["fix"]
            return answer.status_code

        for header in ("", f"Basic {TOKEN}", "Bearer", "Bearer é", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"):
            assert await asked(header.encode()) == 401, header
        assert await asked(f"Bearer {TOKEN}") == 200
        assert (await client.get("/api/allocation")).status_code == 401
        assert (await client.get(DOCUMENT)).status_code == 401
        file.write_text("another-token-that-is-long,grafana\n")
        assert await asked(f"Bearer {TOKEN}") == 401
        assert await asked("Bearer another-token-that-is-long") == 200
        file.write_text("short,grafana\n")
        assert await asked("Bearer another-token-that-is-long") == 503


@pytest.mark.parametrize("text", ["", "# none", "short,name", f"{TOKEN}", f"{TOKEN},", "with a blank inside it,name"])
def test_a_file_of_tokens_that_lets_nobody_in_is_refused(tmp_path, capsys, text):
    (tmp_path / "tokens").write_text(text)
    command = ["run", "gateway", "--rest", "127.0.0.1:0", "--nats", "nats://127.0.0.1:1"]
    assert main([*command, "--rest-auth", f"tokens:{tmp_path / 'tokens'}"]) == 2
    assert "TOKEN,NAME" in capsys.readouterr().err


def test_how_tokens_are_checked_is_one_of_two_words(capsys):
    command = ["run", "gateway", "--nats", "nats://127.0.0.1:1"]
    assert main([*command, "--rest", "127.0.0.1:0", "--rest-auth", "basic"]) == 2
    assert "write tokens:FILE or kubernetes" in capsys.readouterr().err
    assert main([*command, "--rest-auth", "kubernetes"]) == 2
    assert "--rest-auth is for --rest" in capsys.readouterr().err
    assert main([*command, "--rest", "127.0.0.1:0", "--rest-auth", "tokens:/nowhere"]) == 2
    assert "cannot be read" in capsys.readouterr().err


async def test_from_outside_it_is_reached_with_tokens_over_https_only(bus, tmp_path):
    (tmp_path / "tokens").write_text(f"{TOKEN},grafana\n")
    access = Tokens(tmp_path / "tokens")
    with pytest.raises(ListenError, match="nobody is asked"):
        GatewayService(bus, None, host="127.0.0.1", port=0, rest=("0.0.0.0", 0))
    with pytest.raises(ListenError, match="tokens would cross the network in clear"):
        GatewayService(bus, None, host="127.0.0.1", port=0, rest=("0.0.0.0", 0), access=access)
    authority, paths = trustme.CA(), (tmp_path / "tls.crt", tmp_path / "tls.key")
    issue(authority, paths)
    pair = Certificate(*paths)
    service = GatewayService(bus, pair, host="127.0.0.1", port=0, rest=("0.0.0.0", 0), access=access)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with running(service, Inspector(bus)), httpx.AsyncClient(verify=context, timeout=20) as client:
        url = f"https://127.0.0.1:{service.rest_port}/api/v1/pools"
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200


async def test_an_api_server_that_is_not_there_lets_nobody_in_and_answers_count_for_seconds():
    class Silent:
        asked = 0

        async def call(self, *_args, **_options):
            self.asked += 1
            raise KubeUnreachableError("POST", "gone")

    class Refusing(Silent):
        async def call(self, *_args, **_options):
            self.asked += 1
            return b'{"status": {"authenticated": false}}'

    with pytest.raises(DeniedError) as denied:
        await Reviews(Silent()).check("t", "get", "/api/v1/pools")
    assert denied.value.code == 503
    now, server = [100.0], Refusing()
    reviews = Reviews(server, lambda: now[0])
    for wait, asked in ((0.0, 1), (FRESH_S - 1, 1), (1.0, 2)):
        now[0] += wait
        with pytest.raises(DeniedError) as denied:
            await reviews.check("t", "get", "/api/v1/pools")
        assert (denied.value.code, server.asked) == (401, asked)
