"""Gateway and mutators on a real bus: reviews over HTTPS, mutators that die, certificates that rotate, slots that count."""

import asyncio
import contextlib
import ssl
from collections import Counter
from datetime import timedelta

import httpx
import msgspec
import pytest
import trustme

from bus import codec, subjects
from bus.connection import Bus
from consumers.mutator.counters import Counters, SlotsUnknownError, slots_subject
from consumers.mutator.mutate import SLOT_LABEL, Context
from consumers.mutator.operators import Operators
from consumers.mutator.options import Options, read_options
from consumers.mutator.ports import PORT_LABEL, Place, PortWish
from consumers.mutator.service import Mutator
from producers.gateway.app import patience_of
from producers.gateway.service import GatewayService
from producers.gateway.tls import Certificate, CertificateError
from schemas.cluster import Namespace
from schemas.dialects import HamiConfig, TensorFusionDefaults
from schemas.event import Event
from schemas.kube.resources import CustomResource
from schemas.ledger import QuotaRecord
from schemas.pod import GpuRequest, Pod
from schemas.quota import Budget, Quota, Usage
from schemas.remote import Owner, RemoteClient
from tests.conftest import eventually
from tests.makers import makers

OWNER = {"kind": "ReplicaSet", "name": "web-7f", "uid": "o1", "controller": True}
POOL = CustomResource(
    plural="gpupools", namespace="", name="shared", uid="p", spec={"nodeManagerConfig": {}},
    annotations={"tensor-fusion.ai/is-default-pool": "true"},
)  # fmt: skip
MOVING = "autoMigration: {enable: true, scope: {includes: {namespaceSelector: {matchLabels: {move: 'yes'}}}}}"
CONTEXT = Context(
    pools=frozenset({"shared"}),
    hami=HamiConfig(pool="shared"),
    defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
)


def review(pod, uid="r1", **request):
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": uid, "kind": kind, "namespace": "ml", "operation": "CREATE", "object": pod, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def gpu_pod(replicas="", **limits):
    meta = {"generateName": "web-", "ownerReferences": [OWNER]}
    if replicas:
        meta |= {
            "labels": {"tensor-fusion.ai/enabled": "true"},
            "annotations": {
                "tensor-fusion.ai/enabled-replicas": replicas,
                "tensor-fusion.ai/tflops-request": "10",
                "tensor-fusion.ai/vram-request": "1Gi",
            },
        }
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


@contextlib.asynccontextmanager
async def running(role):
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(role.run(stop, ready=ready))
    await asyncio.wait([task, waiting := asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield role
    finally:
        stop.set()
        await task


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def files(tmp_path, authority):
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    issue(authority, paths)
    return paths


def issue(authority, paths):
    issued = authority.issue_cert("127.0.0.1")
    paths[1].write_bytes(issued.private_key_pem.bytes())
    paths[0].write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


@pytest.fixture
async def gateway(bus, files):
    async with running(GatewayService(bus, Certificate(*files), host="127.0.0.1", port=0)) as service:
        yield service


@pytest.fixture
async def client(gateway, authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{gateway.port}", verify=context, timeout=20) as found:
        yield found


async def test_a_gpu_pod_is_patched_and_others_are_left(bus, client):
    async with running(Mutator(bus, "m", lambda: CONTEXT)):
        assert (await client.get("/readyz")).status_code == 200
        for path in ("/mutate-v1-pod?timeout=10s", "/webhook"):
            found = await client.post(path, json=review(gpu_pod(**{"nvidia.com/gpu": "1"})))
            assert (found.json()["apiVersion"], found.json()["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
            response = found.json()["response"]
            assert (response["uid"], response["allowed"], response["patchType"]) == ("r1", True, "JSONPatch")
            patch = msgspec.json.decode(msgspec.convert(response["patch"], bytes))
            assert {"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"} in patch
        for other in (review(gpu_pod()), review(gpu_pod(), operation="UPDATE"), review({}, kind={"kind": "Node"})):
            response = (await client.post("/mutate-v1-pod", json=other)).json()["response"]
            assert response == {"uid": "r1", "allowed": True}


async def test_a_refusal_reaches_the_user_with_field_value_and_fix(bus, client):
    async with running(Mutator(bus, "m", lambda: CONTEXT)):
        wrong = gpu_pod(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"})
        response = (await client.post("/mutate-v1-pod", json=review(wrong))).json()["response"]
        assert not response["allowed"]
        assert response["status"]["code"] == 422
        assert "nvidia.com/gpumem: '16Gi'" in response["status"]["message"]
        assert "write the number of MiB, such as 16384" in response["status"]["message"]


async def test_nobody_answers(client):
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 503
    answer = await client.post("/mutate-v1-pod?timeout=1s", json=review(gpu_pod(**{"nvidia.com/gpu": "1"})))
    assert answer.status_code == 503
    assert "nobody can admit it just now" in answer.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no AdmissionReview"),
        (b"{", "no AdmissionReview"),
        (b"\xff\xfe", "no AdmissionReview"),
        (b"[]", "no AdmissionReview"),
        (b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}', "v1beta1"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": ""}}', "uid is empty"),
        (b" " * (5 << 20), "no pod is that large"),
    ],
)
async def test_what_is_no_review(client, body, says):
    answer = await client.post("/mutate-v1-pod", content=body)
    assert answer.status_code == 400
    assert says in answer.text


async def test_how_long_the_api_server_waits_is_read_from_the_url_whatever_stands_there(bus, client):
    async with running(Mutator(bus, "m", lambda: CONTEXT)):
        for query in ("timeout=5s", "timeout=", "timeout=%FF", "&&&=&" * 400, "timeout=9" + "9" * 2000 + "s"):
            answer = await client.post(f"/mutate-v1-pod?{query}", json=review(gpu_pod()))
            assert answer.status_code == 200, query
    answer = await client.get("/mutate-v1-pod")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"", 9),
        (b"timeout=10s", 9),
        (b"timeout=1m30s", 54),
        (b"timeout=2.5s", 2.25),
        (b"timeout=0s", 9),
        (b"timeout=x", 9),
    ],
)
def test_part_of_the_api_servers_patience_is_ours(query, seconds):
    assert patience_of(query) == seconds


async def test_a_mutator_that_dies_fails_no_request(bus, server, client):
    """One of two is gone without a word in the middle of requests: they go to the other within the API server's patience."""
    async with await Bus.connect(server.url, name="doomed") as doomed, running(Mutator(bus, "m1", lambda: CONTEXT)):
        dying = asyncio.create_task(Mutator(doomed, "m2", lambda: CONTEXT).run(asyncio.Event()))
        body = review(gpu_pod(**{"nvidia.com/gpu": "1"}))

        async def ask(number):
            if number == 40:
                dying.cancel()
                doomed.client._transport.close()  # as SIGKILL would
            return await client.post("/mutate-v1-pod?timeout=5s", json=body)

        answers = await asyncio.gather(*(ask(number) for number in range(100)))
        assert {answer.status_code for answer in answers} == {200}
        with contextlib.suppress(asyncio.CancelledError):
            await dying


async def test_a_certificate_is_rotated_under_load_and_no_request_fails(bus, gateway, client, authority, files):
    """Some keep their connection and some open one for each request, while the certificate changes again and again."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    url, body = f"https://127.0.0.1:{gateway.port}/mutate-v1-pod", review(gpu_pod(**{"nvidia.com/gpu": "1"}))
    codes, stop = Counter(), asyncio.Event()

    async def keep():
        while not stop.is_set():
            codes[(await client.post("/mutate-v1-pod", json=body)).status_code] += 1

    async def open_anew():
        while not stop.is_set():
            async with httpx.AsyncClient(verify=context, timeout=20) as fresh:
                codes[(await fresh.post(url, json=body)).status_code] += 1

    async with running(Mutator(bus, "m", lambda: CONTEXT)), asyncio.TaskGroup() as tasks:
        seen = {await peer(gateway, authority)}
        for work in (keep, open_anew):
            for _ in range(4):
                tasks.create_task(work())
        for rotation in range(1, 6):
            asked = codes.total()
            await eventually(lambda asked=asked: codes.total() >= asked + 20)
            issue(authority, files)
            assert gateway._certificate.refresh()
            seen.add(await peer(gateway, authority))
            assert len(seen) == rotation + 1
        for broken in (b"broken", b""):
            issue(authority, files)  # a new pair of which only the first half can be used
            files[1].write_bytes(broken)
            assert not gateway._certificate.refresh()
            asked = codes.total()
            await eventually(lambda asked=asked: codes.total() >= asked + 20)
        stop.set()
    assert set(codes) == {200}


async def peer(gateway, authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return found


def test_a_certificate_that_is_not_there(tmp_path):
    with pytest.raises(CertificateError, match="cannot be used"):
        Certificate(tmp_path / "a", tmp_path / "b")


# enabled-replicas


async def say_pod(bus, name, slot, phase="Running"):
    pod = Pod(
        namespace="ml", name=name, uid=f"uid-{name}", resource_version="1", phase=phase,
        request=GpuRequest(pool="shared"), labels={SLOT_LABEL: slot},
    )  # fmt: skip
    event = Event(
        id=f"{name}:{phase}", source="/t", type="gpubus.pod.v1", subject=name, time="2026-11-30T00:00:00Z", data=pod
    )
    await bus.publisher.publish(subjects.state("pod", "ml", name), codec.encode(event))


async def test_of_ten_replicas_at_once_exactly_three_are_ours(server, bus, client):
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(makers(bus))
        for number in range(3):
            other = await stack.enter_async_context(await Bus.connect(server.url, name=f"m{number}"))
            await stack.enter_async_context(running(Mutator(other, f"m{number}", lambda: CONTEXT)))
        bodies = [review(gpu_pod(replicas="3"), uid=f"r{number}") for number in range(10)]
        answers = await asyncio.gather(*(client.post("/mutate-v1-pod", json=body) for body in bodies))
        assert sum("patch" in answer.json()["response"] for answer in answers) == 3
        again = await client.post("/mutate-v1-pod", json=review(gpu_pod(replicas="4"), uid="r11"))
        assert "patch" in again.json()["response"], "the number may be raised"
        dry = await client.post("/mutate-v1-pod", json=review(gpu_pod(replicas="5"), uid="r12", dryRun=True))
        assert "patch" in dry.json()["response"]
        last = await client.post("/mutate-v1-pod", json=review(gpu_pod(replicas="5"), uid="r13"))
        assert "patch" in last.json()["response"], "a dry run takes nothing"


async def test_a_pod_counts_as_none_of_a_controller_that_has_not_made_it(bus, client):
    async with running(Mutator(bus, "m", lambda: CONTEXT)) as mutator:
        body = review(gpu_pod(replicas="3"), uid="r1")
        status = (await client.post("/mutate-v1-pod", json=body)).json()["response"]["status"]
        assert (status["code"], "see that a watcher runs" in status["message"]) == (503, True)
        async with makers(bus, forged={OWNER["uid"]}):
            response = (await client.post("/mutate-v1-pod", json=body)).json()["response"]
        assert (response["allowed"], response["status"]["code"]) == (False, 422)
        assert (
            "enabled-replicas: '3' counts pods of one controller, and there is no ReplicaSet web-7f"
            in (response["status"]["message"])
        )
        assert mutator._counters._records == {}, "no slot is taken"
        bare = gpu_pod(**{"nvidia.com/gpu": "1"})
        assert "patch" in (await client.post("/mutate-v1-pod", json=review(bare))).json()["response"], (
            "others need nobody"
        )


async def test_junk_in_the_ledger_stops_no_counting(bus):
    counters = Counters(bus, "a")
    await counters.start()
    for subject in ("gpubus.ledger.node.=ZZ", slots_subject("ml/ReplicaSet/junk/o1")):
        await bus.publisher.publish(subject, b"{")
    with pytest.raises(SlotsUnknownError, match="cannot be read"):
        await counters.take("ml/ReplicaSet/junk/o1", "s1", 1)
    assert await counters.take("ml/ReplicaSet/web/o1", "s1", 1)
    await counters.stop()


async def test_a_controller_whose_slots_cannot_be_read_is_told_so_at_once(bus, client):
    owner = f"ml/ReplicaSet/{OWNER['name']}/{OWNER['uid']}"
    await bus.publisher.publish(slots_subject(owner), b"{")
    async with running(Mutator(bus, "m", lambda: CONTEXT)), makers(bus):
        answer = await client.post("/mutate-v1-pod", json=review(gpu_pod(replicas="3"), uid="r1"))
        response = answer.json()["response"]
        assert (response["allowed"], response["status"]["code"]) == (False, 503)
        assert f"the record of the slots of {owner} cannot be read" in response["status"]["message"]


async def test_slots_are_exact_though_the_template_has_a_copied_label(bus):
    owner = "ml/ReplicaSet/web/o1"
    counters = Counters(bus, "a")
    await counters.start()
    # A template made from a pod of another controller, or of this one: both slots are somebody's or nobody's.
    assert await counters.take(owner, "s1", 3, before="elsewhere") == "s1"
    assert await counters.take(owner, "again", 3, before="s1") == "s1", "it came a second time, before it existed"
    await say_pod(bus, "p1", "s1")
    await eventually(lambda: [slot.pod_uid for slot in counters._records[owner][1].slots] == ["uid-p1"])
    granted = [await counters.take(owner, f"t{number}", 3, before="s1") for number in range(4)]
    assert granted == ["t0", "t1", "", ""]
    await counters.stop()


async def test_a_pod_of_another_namespace_spends_no_slot_by_its_label(bus):
    owner = "theirs/ReplicaSet/web/o1"
    counters = Counters(bus, "a")
    await counters.start()
    assert await counters.take(owner, "s1", 1)
    assert await counters.take("ml/ReplicaSet/web/o2", "s2", 1)
    await say_pod(bus, "thief", "s1")
    await say_pod(bus, "p2", "s2")
    await eventually(lambda: counters._records["ml/ReplicaSet/web/o2"][1].slots[0].pod_uid == "uid-p2")
    await say_pod(bus, "thief", "s1", phase="Succeeded")
    await say_pod(bus, "p2", "s2", phase="Succeeded")
    await eventually(lambda: not counters._records["ml/ReplicaSet/web/o2"][1].slots)
    assert [(slot.id, slot.pod_uid) for slot in counters._records[owner][1].slots] == [("s1", "")]
    await counters.stop()


async def test_slots_come_back_when_their_pod_ends_or_goes(bus, server):
    owner = "ml/ReplicaSet/web/o1"
    async with await Bus.connect(server.url, name="b") as other:
        counters = [Counters(bus, "a"), Counters(other, "b")]
        for one in counters:
            await one.start()
        first, second = counters
        assert await first.take(owner, "s1", 2)
        assert await second.take(owner, "s1", 2), "the same admission, asked again"
        assert await second.take(owner, "s2", 2)
        assert not await first.take(owner, "s3", 2)
        await say_pod(bus, "p1", "s1")
        await say_pod(bus, "p2", "s2")
        await eventually(lambda: {slot.pod_uid for slot in second._records[owner][1].slots} == {"uid-p1", "uid-p2"})
        await say_pod(bus, "p1", "s1", phase="Succeeded")
        await eventually(lambda: len(first._records[owner][1].slots) == 1)
        assert await first.take(owner, "s3", 2)
        for one in counters:
            await one.stop()
        # While no mutator runs, the other pod goes.
        await bus.publisher.publish(subjects.state("pod", "ml", "p2"), b"")
        late = Counters(bus, "c")
        await late.start()
        await eventually(lambda: {slot.id for slot in late._records[owner][1].slots} == {"s3"})
        await late.stop()


# Quotas


async def test_quotas_and_what_is_held_are_followed(bus, client):
    operators = Operators(bus, Options())
    await operators.start()
    async with running(Mutator(bus, "m", operators.context)):
        await say(bus, subjects.state("config", "gpupools", "", "shared"), "gpubus.resource.v1", POOL)
        quota = Quota(namespace="ml", name="ResourceQuota/q", total=Budget(vram_bytes=2**30))
        await say(bus, subjects.state("quota", "ml", quota.name), "gpubus.quota.v1", quota)
        await eventually(lambda: operators.context().bounds("ml").quotas == (quota,))
        await eventually(lambda: operators.context().hami.pool == "shared")
        pod = review(gpu_pod(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}))
        assert (await client.post("/mutate-v1-pod", json=pod)).json()["response"]["allowed"]
        record = QuotaRecord(namespace="ml", txn="t", used=Usage(workers=1, gpus=1, vram_bytes=2**20))
        await say(bus, subjects.ledger_quota("ml"), "gpubus.ledger.quota.v1", record)
        await eventually(lambda: operators.context().bounds("ml").held.workers == 1)
        response = (await client.post("/mutate-v1-pod", json=pod)).json()["response"]
        assert "quota ResourceQuota/q of namespace ml" in response["status"]["message"]
        await bus.publisher.publish(subjects.state("quota", "ml", quota.name), b"")
        await eventually(lambda: operators.context().bounds("ml").quotas == ())
    await operators.stop()


async def say(bus, subject, kind, data):
    event = Event(id=f"{subject}:1", source="/t", type=kind, subject="s", time="2026-11-30T00:00:00Z", data=data)
    await bus.publisher.publish(subject, codec.encode(event))


async def test_pods_of_a_namespace_that_is_labelled_for_it_are_moved(bus, client):
    operators = Operators(bus, read_options(MOVING))
    await operators.start()
    async with running(Mutator(bus, "m", operators.context)):
        await say(bus, subjects.state("config", "gpupools", "", "shared"), "gpubus.resource.v1", POOL)
        await eventually(lambda: operators.context().hami.pool == "shared")
        pod = review(gpu_pod(**{"nvidia.com/gpu": "1"}))
        assert await scheduler(client, pod) == "hami-scheduler"
        namespace = Namespace(name="ml", labels={"move": "yes"})
        await say(bus, subjects.state("namespace", "ml"), "gpubus.namespace.v1", namespace)
        await eventually(lambda: operators.context().namespaces("ml") == namespace.labels)
        assert await scheduler(client, pod) == "tensor-fusion-scheduler"
        await bus.publisher.publish(subjects.state("namespace", "ml"), b"")
        await eventually(lambda: operators.context().namespaces("ml") is None)
        assert await scheduler(client, pod) == "hami-scheduler"
    await operators.stop()


async def scheduler(client, pod):
    response = (await client.post("/mutate-v1-pod", json=pod)).json()["response"]
    patch = msgspec.json.decode(msgspec.convert(response["patch"], bytes))
    return next(operation["value"] for operation in patch if operation["path"] == "/spec/schedulerName")


async def test_a_pod_with_gpus_of_other_nodes_counts_among_its_controller_s_as_long_as_it_is_a_client(bus):
    owner, subject = "ml/ReplicaSet/web/o1", subjects.state("client", "ml", "p")
    counters = Counters(bus, "a")
    await counters.start()
    assert await counters.take(owner, "s1", 1)
    made_by = Owner(api_version="apps/v1", kind="ReplicaSet", name="web", uid="o1")
    at = "2026-11-30T00:00:00Z"
    said = RemoteClient(
        namespace="ml", name="p", uid="uid-p", workload="web", spec={}, owner=made_by, created_at=at, slot="s1"
    )
    event = Event(id="c", source="/t", type="gpubus.client.v1", subject="ml/p", time=at, data=said)
    await bus.publisher.publish(subject, codec.encode(event))
    await eventually(lambda: [slot.pod_uid for slot in counters._records[owner][1].slots] == ["uid-p"])
    await bus.publisher.publish(subject, b"")  # it has ended
    await eventually(lambda: not counters._records[owner][1].slots)
    await counters.stop()


# Ports of nodes


def wish(admission):
    return PortWish(admission=admission, taken="", place=Place(0, 0), annotated=True)


async def test_of_many_pods_at_once_no_two_get_one_port_and_ports_come_back(bus, server):
    bounds = (42_230, 42_250)  # over the edge of a block
    async with contextlib.AsyncExitStack() as stack:
        buses = [bus] + [await stack.enter_async_context(await Bus.connect(server.url, name=f"c{n}")) for n in range(2)]
        counters = [Counters(one, f"c{number}") for number, one in enumerate(buses)]
        for one in counters:
            await one.start()
        taken = await asyncio.gather(*(counters[n % 3].take_port(wish(f"a{n}"), bounds) for n in range(25)))
        ports = [int(slot.partition(".")[0]) for slot in taken if slot]
        assert sorted(ports) == list(range(*bounds)), "twenty ports, each once, and five pods without"
        mine = next(slot for slot in taken if slot.endswith(".a0"))
        assert await counters[1].take_port(wish("a0"), bounds) == mine, "the same admission, asked again"

        async def say(phase):
            pod = Pod(
                namespace="ml", name="p", uid="uid-p", resource_version="1", phase=phase,
                request=GpuRequest(pool="shared"), labels={PORT_LABEL: mine},
            )  # fmt: skip
            at = "2026-11-30T00:00:00Z"
            event = Event(id=f"p:{phase}", source="/t", type="gpubus.pod.v1", subject="ml/p", time=at, data=pod)
            await bus.publisher.publish(subjects.state("pod", "ml", "p"), codec.encode(event))

        def holders():
            return {slot.id: slot.pod_uid for _, record in counters[2]._records.values() for slot in record.slots}

        await say("Running")
        await eventually(lambda: holders()[mine] == "uid-p")
        assert await counters[0].take_port(wish("late"), bounds) == ""
        await say("Succeeded")
        await eventually(lambda: mine not in holders())
        dry = await counters[2].take_port(wish("dry"), bounds, dry_run=True)
        late = await counters[2].take_port(wish("late"), bounds)
        assert {slot.partition(".")[0] for slot in (dry, late)} == {mine.partition(".")[0]}, "a dry run takes nothing"
        for one in counters:
            await one.stop()


async def say_port(bus, name, slot, phase="Running"):
    pod = Pod(
        namespace="ml", name=name, uid=f"uid-{name}", resource_version="1", phase=phase,
        request=GpuRequest(pool="shared"), labels={PORT_LABEL: slot} if slot else {},
    )  # fmt: skip
    at = "2026-11-30T00:00:00Z"
    event = Event(id=f"{name}:{slot}:{phase}", source="/t", type="gpubus.pod.v1", subject="ml/p", time=at, data=pod)
    await bus.publisher.publish(subjects.state("pod", "ml", name), codec.encode(event))


async def test_a_port_is_freed_by_the_pod_that_has_it_and_by_no_label(bus):
    bounds = (42_000, 42_001)
    counters = Counters(bus, "a")
    await counters.start()

    def holders(of):
        return {slot.id: slot.pod_uid for _, record in of._records.values() for slot in record.slots}

    slot = await counters.take_port(wish("a0"), bounds)
    await say_port(bus, "p", slot)
    await eventually(lambda: holders(counters) == {slot: "uid-p"})
    await say_port(bus, "forged", slot)
    await say_port(bus, "forged", slot, phase="Succeeded")
    await say_port(bus, "p", "")  # somebody has removed its label
    await counters._state.caught_up()
    await counters.stop()
    late = Counters(bus, "b")
    await late.start()
    assert holders(late) == {slot: "uid-p"}
    assert await late.take_port(wish("late"), bounds) == ""
    await bus.publisher.publish(subjects.state("pod", "ml", "p"), b"")
    await eventually(lambda: holders(late) == {})
    await late.stop()


async def test_a_lease_does_not_end_while_nobody_tells_of_pods(bus, monkeypatch):
    bounds = (42_000, 42_001)
    counters = Counters(bus, "a")
    await counters.start()
    monkeypatch.setattr("consumers.mutator.ports.LEASE", timedelta(0))
    assert await counters.take_port(wish("a0"), bounds)
    assert await counters.take_port(wish("late"), bounds) == "", "its pod may be there, and nobody says so"
    await say_port(bus, "other", "")
    await eventually(lambda: counters._heard.year > 2000)
    assert await counters.take_port(wish("late"), bounds) != ""
    await counters.stop()


async def test_a_pod_gets_its_port_through_the_webhook(bus, client):
    meta = {
        "name": "app",
        "labels": {
            "tensor-fusion.ai/enabled": "true",
            "tensor-fusion.ai/host-port": "auto",
            "tensor-fusion.ai/port-name": "http",
        },
        "annotations": {"tensor-fusion.ai/tflops-request": "10", "tensor-fusion.ai/vram-request": "1Gi"},
    }
    containers = [{"name": "main", "ports": [{"name": "http", "containerPort": 80}]}]
    context = msgspec.structs.replace(CONTEXT, options=Options(cluster_host_port_range="50000-50001"))
    async with running(Mutator(bus, "m", lambda: context)):
        found = [
            (
                await client.post(
                    "/webhook", json=review({"metadata": meta, "spec": {"containers": containers}}, uid=uid)
                )
            ).json()
            for uid in ("r1", "r1", "r2")
        ]
    for answer in found[:2]:
        patch = msgspec.json.decode(msgspec.convert(answer["response"]["patch"], bytes))
        assert {"op": "add", "path": "/spec/containers/0/ports/0/hostPort", "value": 50_000} in patch
    status = found[2]["response"]["status"]
    assert (status["code"], "all ports of nodes from 50000 to 50000 are taken" in status["message"]) == (503, True)
