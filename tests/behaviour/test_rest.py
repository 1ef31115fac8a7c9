"""The REST interface on a real bus: what would become of a pod, and whether it does; bad input; who may ask."""

import asyncio
import contextlib
from datetime import UTC, datetime

import httpx
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bus import codec, rpc, subjects
from consumers.allocator.inspector.service import Inspector
from consumers.allocator.service import Allocator
from consumers.mutator.mutate import Context
from consumers.mutator.service import Mutator
from deploy.cli.main import main
from deploy.local.processes import RoleProcess
from deploy.local.server import free_port
from producers.gateway.manifest import read_pod
from producers.gateway.service import GatewayService
from producers.gateway.sockets import ListenError
from schemas.admission import Admit, Understood
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults
from schemas.event import Event
from schemas.pod import Schedule
from schemas.quota import Budget, Quota
from schemas.registry import TYPE_NAMES
from tests.conftest import eventually

GIB = 2**30
NOW = datetime(2026, 11, 30, tzinfo=UTC)
CONTEXT = Context(
    pools=frozenset({"shared"}),
    hami=HamiConfig(pool="shared"),
    defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
)
SIMULATE = "/api/simulate-schedule"
YAML = {"Content-Type": "application/yaml"}
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: test-pod
  namespace: default
  labels:
    tensor-fusion.ai/enabled: "true"
  annotations:
    tensor-fusion.ai/tflops-request: "100"
    tensor-fusion.ai/vram-request: "16Gi"
    tensor-fusion.ai/tflops-limit: "100"
    tensor-fusion.ai/vram-limit: "16Gi"
spec:
  schedulerName: tensor-fusion-scheduler
  containers:
  - name: test-container
    image: nvidia/cuda"""


async def say(bus, subject, data):
    event = Event(id=subject, source="/test", type=TYPE_NAMES[type(data)], subject=subject, time=NOW, data=data)
    await bus.publisher.publish(subject, codec.encode(event), msg_id=subject)


async def announce(bus, per_node=2, nodes=(("big", 312_000, 80), ("small", 65_000, 16))):
    await say(bus, subjects.state("pool", "shared"), Pool(name="shared"))
    for name, tflops, vram in nodes:
        gpus = [
            GpuDevice(uuid=f"GPU-{name}-{i}", index=i, model=name, tflops_milli=tflops, vram_bytes=vram * GIB)
            for i in range(per_node)
        ]
        node = Node(name=name, pool="shared", cpu_milli=64_000, memory_bytes=512 * GIB, max_pods=110)
        await say(bus, subjects.state("node", name), node)
        await say(bus, subjects.state("gpu", name), GpuInventory(node=name, gpus=gpus, observed_at=NOW))


@contextlib.asynccontextmanager
async def running(*roles):
    stop, ready = asyncio.Event(), [asyncio.Event() for _ in roles]
    async with asyncio.TaskGroup() as tasks:
        for role, event in zip(roles, ready, strict=True):
            tasks.create_task(role.run(stop, ready=event))
        await asyncio.gather(*(event.wait() for event in ready))
        try:
            yield roles
        finally:
            stop.set()


@pytest.fixture
async def client(bus):
    service = GatewayService(bus, None, host="127.0.0.1", port=0, rest=("localhost", 0))
    async with (
        running(service),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.rest_port}", timeout=20) as found,
    ):
        yield found


async def test_a_pod_goes_where_the_simulation_said(bus, client):
    await announce(bus)
    inspectors = Inspector(bus), Inspector(bus)
    async with running(Mutator(bus, "m", lambda: CONTEXT), Allocator(bus, "a"), *inspectors):
        answer = await client.post(SIMULATE, content=POD, headers=YAML)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["scheduleResult"] == {"SuggestedHost": "big", "EvaluatedNodes": 2, "FeasibleNodes": 1}
        (gpu,) = found["gpuSchedulerState"]["FinalGPUs"]
        assert found["gpuSchedulerState"]["NodeGPUs"] == {"big": ["gpu-big-0", "gpu-big-1"]}
        assert found["error"] is None
        assert (await client.get("/api/allocation")).json()["allocation"] == {}, "nothing came of it"

        as_json = msgspec.json.encode(yaml.safe_load(POD))
        assert found["warnings"] == []
        tied = f"{POD}\n  resourceClaims: [{{name: c}}]\n  volumes: []"
        warned = (await client.post(SIMULATE, content=tied, headers=YAML)).json()["warnings"]
        assert ["claims are not looked at here" in warning for warning in warned] == [True]

        again = await client.post(
            SIMULATE, content=as_json, headers={"Content-Type": "application/json; charset=utf-8"}
        )
        assert again.json() == found

        admit = Admit(uid="r", namespace="default", pod=msgspec.Raw(as_json), dry_run=False)
        asked = await rpc.call(bus, "mutate.understand", admit, Understood)
        await say(
            bus,
            subjects.work("schedule", "shared", "default", "test-pod"),
            Schedule(namespace="default", name="test-pod", uid="u1", request=asked.request),
        )
        await eventually(lambda: all(one.view.cluster.ledger_seq for one in inspectors))
        state = (await client.get("/api/allocation")).json()
        assert state["nodeWorkerStore"] == {"big": {"default/test-pod": True}}
        held = state["allocation"]["u1"]
        assert (held["GPUNames"], held["PoolName"], held["Count"]) == ([gpu], "shared", 1)
        assert held["Request"] == {"tflops": "100", "vram": "16Gi"}
        assert [one["podName"] for one in state["gpuToWorkerMap"][gpu]] == ["test-pod"]
        assert len(state["gpuStore"]) == 4
        assert state["gpuStore"][f"/{gpu}"]["status"]["available"] == {"tflops": "212", "vram": "64Gi"}


async def test_a_pod_that_fits_nowhere_is_told_what_each_filter_refused(bus, client):
    await announce(bus)
    await say(bus, subjects.state("quota", "ml", "q"), Quota(namespace="ml", name="q", total=Budget(workers=0)))
    async with running(Mutator(bus, "m", lambda: CONTEXT), Inspector(bus)):
        found = (await client.post(SIMULATE, content=POD.replace("16Gi", "100Gi"), headers=YAML)).json()
        assert found["scheduleResult"] == {"SuggestedHost": "", "EvaluatedNodes": 2, "FeasibleNodes": 0}
        stages = found["filterDetail"]["FilterStageDetails"]
        assert sum(stage["Diff"] for stage in stages) == 4
        assert set(stages[0]["Before"]) == {"gpu-big-0", "gpu-big-1", "gpu-small-0", "gpu-small-1"}
        assert stages[-1]["After"] == []
        error = found["error"]
        assert (error["type"], error["numAllNodes"]) == ("FitError", 2)
        nodes = error["diagnosis"]["nodeToStatus"]["nodes"]
        assert set(nodes) == {"big", "small"}
        assert all(one["code"] == 2 and one["message"] for one in nodes.values())
        assert found["gpuSchedulerState"]["FinalGPUs"] == []

        refused = await client.post(SIMULATE, content=POD.replace("namespace: default", "namespace: ml"), headers=YAML)
        assert refused.json()["error"]["diagnosis"]["unschedulablePlugins"] == ["QuotaExceeded"]
        annotated = POD.replace("  annotations:", "  annotations:\n    tensor-fusion.ai/gpupool: other")
        nowhere = await client.post(SIMULATE, content=annotated, headers=YAML)
        assert (nowhere.status_code, nowhere.json()["value"], nowhere.json()["fix"]) == (422, "other", "use shared")

        wrong = await client.post(SIMULATE, content=POD.replace('"16Gi"', '"sixteen"'), headers=YAML)
        assert wrong.status_code == 422
        assert (wrong.json()["field"], wrong.json()["value"]) == ("tensor-fusion.ai/vram-request", "sixteen")
        assert wrong.json()["fix"]
        plain = await client.post(SIMULATE, content="kind: Pod\nspec: {containers: [{name: a}]}", headers=YAML)
        assert (plain.status_code, "asks for no GPU" in plain.json()["error"]) == (422, True)


NO_PODS = [
    (b"a: [", 400, "body", "no YAML"),
    (b"\xff\xfe\xff", 400, "body", "no YAML"),
    (b"", 400, "body", "no object"),
    (b"- 1", 400, "body", "no object"),
    (b"a: 1\n---\nb: 2", 400, "body", "no YAML"),
    (b"a: !!python/object:os.system x", 400, "body", "no YAML"),
    (b"? [1]\n: 2", 400, "body", "no YAML"),
    (b"d: 2026-99-99", 400, "body", "no YAML"),
    (b"kind: Pod\nkind: Pod", 400, "kind", "stands twice"),
    (b"a: &a [x]\nb: *a", 400, "body", "alias"),
    (b"[" * 100, 400, "body", "nested deeper than 64"),
    (b"[" * 100_000, 400, "body", "no YAML"),
    (b"- " * 100_000, 400, "body", "nested deeper than 64"),
    (b"kind: Job", 400, "kind", "no Pod"),
    (b"metadata: [1]", 400, "metadata", "no object"),
    (b"metadata: {labels: {a: 1}}", 400, "metadata.labels.a", "in quotes"),
    (b"metadata: {labels: [a]}", 400, "metadata.labels", "no object"),
    (b"metadata: {namespace: 'a.*.>'}", 400, "metadata.namespace", "no Kubernetes name"),
    (b"metadata: {name: 'a b'}", 400, "metadata.name", "no Kubernetes name"),
    (b'metadata: {name: "a\\n"}', 400, "metadata.name", "no Kubernetes name"),
    (b"#" * (300 << 10), 413, "body", "is over"),
]


async def test_what_is_no_pod_is_refused_with_field_value_and_fix(client):
    for body, code, field, says in NO_PODS:
        answer = await client.post(SIMULATE, content=body, headers=YAML)
        problem = answer.json()
        assert (answer.status_code, problem["field"]) == (code, field), problem
        assert says in problem["error"]
        assert problem["fix"] in problem["error"]


WORDS = st.sampled_from(
    [
        "kind: Pod",
        "metadata:",
        " ",
        "\n",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "&a",
        "*a",
        "<<",
        "!!set",
        "!!binary",
        "? ",
        "'",
        "1e9",
        "~",
        ".inf",
    ]
)


@given(body=st.binary(max_size=80) | st.lists(WORDS, max_size=30).map(lambda words: "".join(words).encode()))
def test_whatever_comes_is_a_pod_or_refused(body):
    for media_type in ("application/yaml", "application/json"):
        with contextlib.suppress(RequestError):
            read_pod(body, media_type)


async def test_what_cannot_be_asked_is_refused_with_field_value_and_fix(client):
    for answer, code, field, value in (
        (await client.get(SIMULATE), 405, "method", "GET"),
        (await client.post("/api/allocation"), 405, "method", "POST"),
        (await client.get("/api/nothing"), 404, "path", "/api/nothing"),
        (
            await client.post(SIMULATE, content="{}", headers={"Content-Type": "text/plain"}),
            415,
            "Content-Type",
            "text/plain",
        ),
        (await client.post(SIMULATE, content="{", headers={"Content-Type": "application/json"}), 400, "body", None),
        (await client.get("/api/allocation", headers={"Host": "evil.example:80"}), 421, "Host", "evil.example:80"),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["field"], problem.get("value")) == (code, field, value)
        assert problem["fix"] in problem["error"]
    assert (await client.get(SIMULATE)).headers["Allow"] == "POST"


async def test_who_cannot_answer_says_so(bus, client):
    answer = await client.get("/api/allocation")
    assert (answer.status_code, answer.json()["error"]) == (503, "no inspector answers: is the role inspector running?")
    async with running(Inspector(bus)):
        answer = await client.post(SIMULATE, content=POD, headers=YAML)
        assert answer.status_code == 503
        assert "what admission would make of the pod" in answer.json()["error"]


async def test_a_large_cluster_is_told_whole(bus, client):
    nodes = [(f"n{number}", 312_000, 80) for number in range(150)]
    async with running(Inspector(bus)):
        await announce(bus, 16, nodes)
        async with asyncio.timeout(30):
            while len((answer := await client.get("/api/allocation")).json()["gpuStore"]) < 2400:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert len(answer.content) > rpc.PART


async def test_each_role_runs_in_a_process_of_its_own(bus, server):
    await announce(bus)
    ports = free_port(), free_port()
    gateway = ("--listen", f"127.0.0.1:{ports[0]}", "--rest", f"127.0.0.1:{ports[1]}")
    roles = [RoleProcess("inspector", [server.url]), RoleProcess("gateway", [server.url], *gateway)]
    try:
        await asyncio.gather(*(role.start() for role in roles))
        async with httpx.AsyncClient(timeout=20) as client:
            found = await client.get(f"http://127.0.0.1:{ports[1]}/api/allocation")
            assert len(found.json()["gpuStore"]) == 4
            outside = await client.get(f"http://127.0.0.1:{ports[0]}/api/allocation")
            assert outside.status_code == 404
    finally:
        await asyncio.gather(*(role.stop() for role in roles))


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com", ""])
def test_rest_is_for_this_machine_only(host, capsys):
    if not host:
        with pytest.raises(ListenError, match="nobody is asked who they are"):
            GatewayService(None, None, host="127.0.0.1", port=0, rest=(host, 0))
        return
    code = main(["run", "gateway", "--rest", f"{host}:8080", "--nats", "nats://127.0.0.1:1"])
    assert code == 2
    assert f"--rest is {host}:8080: that can be reached from outside" in capsys.readouterr().err
