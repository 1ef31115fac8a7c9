"""Which worker a client uses: the one it has while that runs, else the one that fewest use; and what clients call for."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from consumers.workload.called import Caller, caller_of, connection_document, entitled, maker_in, workload_document
from consumers.workload.connections import PATIENCE, client_uid, own_workers, seated, status_of, staying, url_of
from consumers.workload.plan import SETTLE, Plan, Worker, plan_dedicated
from schemas.kube.resources import TensorFusionConnection, TensorFusionWorkload
from schemas.kube.workloads import TensorFusionConnectionStatus
from schemas.remote import Owner, RemoteClient, maker_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worker(name: str, *, uid: str = "", ready: bool = True, address: str = "10.0.0.1", **more: Any) -> Worker:
    made = NOW - timedelta(minutes=1)
    return Worker(name=name, uid=uid or f"uid-{name}", created_at=made, ready=ready, address=address, **more)


def client(name: str, age: int = 0, replicas: int | None = None, owner: str = "rs") -> RemoteClient:
    spec: dict[str, Any] = {"poolName": "p", **({"replicas": replicas} if replicas is not None else {})}
    return RemoteClient(
        namespace="ns", name=name, uid=f"uid-{name}", workload="web", spec=spec, pool="p",
        owner=Owner(api_version="apps/v1", kind="ReplicaSet", name=owner, uid=f"uid-{owner}"),
        created_at=NOW - timedelta(seconds=age),
    )  # fmt: skip


def connection(name: str, on: Worker | None = None) -> TensorFusionConnection:
    made = msgspec.convert(connection_document(client(name)), TensorFusionConnection)
    status = TensorFusionConnectionStatus()
    if on is not None:
        status = TensorFusionConnectionStatus(phase="Running", connection_url=url_of(on), worker_name=on.name)
    return msgspec.structs.replace(made, status=status)


def seat(
    connections: list[TensorFusionConnection],
    workers: list[Worker],
    *,
    dedicated: bool = False,
    replicas: int = 1,
    age: timedelta = PATIENCE,
    problem: str = "",
) -> dict[str, TensorFusionConnectionStatus]:
    meta = [msgspec.structs.replace(one.metadata, creation_timestamp=(NOW - age).isoformat()) for one in connections]
    made = [msgspec.structs.replace(one, metadata=own) for one, own in zip(connections, meta, strict=True)]
    before = {client_uid(one): f"uid-{one.status.worker_name}" for one in made if one.status.worker_name}
    seats = own_workers(made, workers) if dedicated else seated(before, made, workers, replicas=replicas, now=NOW)
    return {one.metadata.name: status_of(one, seats, workers, problem) for one in made}


def used(found: dict[str, TensorFusionConnectionStatus]) -> Counter[str]:
    return Counter(one.worker_name for one in found.values())


def test_a_url_names_the_worker_and_which_of_those_that_had_the_name() -> None:
    one, later = worker("w", uid="a"), worker("w", uid="b")
    assert url_of(one).startswith("native+10.0.0.1+8000+w-")
    assert url_of(one).rpartition("-")[2].isdigit()
    assert url_of(one) != url_of(later)
    assert url_of(worker("w", address="")) == ""
    assert url_of(worker("w", port=9000)).startswith("native+10.0.0.1+9000+")


@given(st.integers(0, 12), st.integers(1, 5))
def test_new_clients_are_spread_evenly(clients: int, workers: int) -> None:
    there = [worker(f"w-{number}") for number in range(workers)]
    loads = used(seat([connection(f"c-{number}") for number in range(clients)], there))
    assert sum(loads.values()) == clients
    assert max(loads.values(), default=0) - min((loads[one.name] for one in there), default=0) <= 1


def test_a_client_stays_where_it_is_and_moves_when_its_worker_is_lost() -> None:
    first, second = worker("w-0"), worker("w-1")
    there = [connection("a", first), connection("b", first)]
    assert used(seat(there, [first, second])) == {"w-0": 2}
    blip = msgspec.structs.replace(first, ready=False)
    assert used(seat(there, [blip, second])) == {"w-0": 2}
    for lost in (
        [],
        [worker("w-0", ending=True)],
        [worker("w-0", ended=True)],
        [worker("w-0", uid="new", ready=False)],
    ):
        assert used(seat(there, [*lost, second])) == {"w-1": 2}
    moved = seat(there, [worker("w-0", uid="new"), second])
    assert used(moved) == {"w-0": 1, "w-1": 1}


def test_not_all_start_on_the_worker_that_is_ready_first() -> None:
    clients, first, later = [connection(name) for name in "abc"], worker("w-0"), worker("w-1", ready=False)
    young = timedelta(seconds=1)
    assert used(seat(clients, [first, later], replicas=2, age=young)) == {"w-0": 2, "": 1}
    assert used(seat(clients, [first], replicas=2, age=young)) == {"w-0": 2, "": 1}
    assert used(seat(clients, [first, worker("w-1")], replicas=2, age=young)) == {"w-0": 2, "w-1": 1}
    assert used(seat(clients, [first, later], replicas=2)) == {"w-0": 3}, "none waits for ever"


def test_without_a_worker_there_is_no_url_and_one_of_its_own_is_nobody_else_s() -> None:
    assert seat([connection("a")], [worker("w", ready=False)])["a-tf-vgpu"].phase == "Pending"
    assert seat([connection("a")], [], problem="no image")["a-tf-vgpu"].phase == "Failed"
    own, others = worker("a-tf-vgpu", client="uid-a"), worker("b-tf-vgpu", client="uid-b")
    found = seat([connection("a"), connection("b")], [own, others], dedicated=True)
    assert {name: one.worker_name for name, one in found.items()} == {one: one for one in ("a-tf-vgpu", "b-tf-vgpu")}
    assert seat([connection("a")], [others], dedicated=True)["a-tf-vgpu"].connection_url == ""
    predecessor = worker("a-tf-vgpu", client="uid-before")
    assert seat([connection("a")], [predecessor], dedicated=True)["a-tf-vgpu"].connection_url == ""


def test_each_client_gets_a_worker_of_its_own_that_goes_with_it() -> None:
    wanted = {"a": "uid-a", "b": "uid-b"}
    mine = worker("a", client="uid-a")
    assert plan_dedicated("web", wanted, [mine], NOW) == Plan(make=("b",), clients={"b": "uid-b"})
    assert plan_dedicated("web", {}, [mine], NOW).remove == (mine,)
    assert plan_dedicated("web", {"a": "uid-later"}, [mine], NOW).remove == (mine,)
    assert plan_dedicated("web", {"a": "uid-later"}, [worker("a", client="uid-a", ending=True)], NOW) == Plan()
    assert plan_dedicated("web", {}, [worker("somebody's")], NOW) == Plan()
    ended = worker("a", client="uid-a", ended=True)
    assert plan_dedicated("web", {"a": "uid-a"}, [ended], NOW).remove == (ended,)
    young = msgspec.structs.replace(ended, created_at=NOW)
    assert plan_dedicated("web", {"a": "uid-a"}, [young], NOW) == Plan(again=NOW + SETTLE)


def made(kind: str, name: str, uid: str = "") -> Owner:
    return Owner(api_version="apps/v1", kind=kind, name=name, uid=uid or f"uid-{name}")


WEB = made("Deployment", "web")


def test_the_newest_client_says_what_the_workload_is_and_nothing_owns_it() -> None:
    clients = [client("a", age=60), client("b", age=0, replicas=3), client("c", age=60)]
    again = made("Deployment", "web", "uid-later")
    callers = [Caller(clients[0], WEB), Caller(clients[1], again), Caller(clients[2], WEB)]
    document = workload_document(callers)
    assert "ownerReferences" not in document["metadata"], "no garbage collector takes it from clients that run"
    assert (document["metadata"]["name"], document["spec"]["replicas"]) == ("web", 3)
    assert document["metadata"]["annotations"] == {
        "tensor-fusion.ai/workload-mode": "fixed", "tensor-fusion.ai/workload-maker": "Deployment/web",
        "gpubus.io/workload-maker-api": "apps/v1",
    }  # fmt: skip
    assert workload_document(callers[:1])["metadata"]["annotations"]["tensor-fusion.ai/workload-mode"] == "dynamic"
    assert client_uid(connection("a")) == "uid-a"


def of(name: str, workload: str, top: Owner | None) -> str:
    """Return who calls by a pod of this name for a workload; empty if it may not."""
    found = caller_of(msgspec.structs.replace(client(name), workload=workload), top)
    return f"{maker_of(found.maker)} {found.maker.uid}" if found is not None else ""


def test_nobody_has_a_workload_of_another_name_than_its_own_or_that_of_who_made_it_by_the_api_server_s_word() -> None:
    assert of("web-7f-abcde", "web", WEB) == "Deployment/web uid-web"
    assert of("web-7f-abcde", "web", None) == "", "it only says so"
    assert of("web-7f-abcde", "other", WEB) == ""
    assert of("web-7f-abcde", "rs", WEB) == "ReplicaSet/rs uid-rs", "admitted before its ReplicaSet was adopted"
    assert of("web-7f-abcde", "rs", None) == ""
    assert of("web", "web", None) == "Pod/web uid-web"
    assert of("evil", "web", None) == ""
    assert of("web-7f-abcde", "web-7f-abcde", None) == "Pod/web-7f-abcde uid-web-7f-abcde", "counts as its own"
    assert of("web-7f-abcde", "web-7f-0123abcd", None) == "Pod/web-7f-abcde uid-web-7f-abcde"
    for free in ("web-7f-0123abcde", "web-7f-0123abcX", "web-7-0123abcd", "web-7f-x-0123abcd"):
        assert of("web-7f-abcde", free, None) == ""


def called_for(one: Caller) -> TensorFusionWorkload:
    return msgspec.convert(workload_document([one]), TensorFusionWorkload)


def test_a_workload_is_for_clients_of_those_who_called_for_it_and_one_by_hand_for_none() -> None:
    old, new = Caller(client("a"), WEB), Caller(client("b"), made("Deployment", "web", "uid-again"))
    bare, stateful = Caller(client("web"), made("Pod", "web")), Caller(client("web-0"), made("StatefulSet", "web"))
    everybody = [old, new, bare, stateful]
    assert entitled(everybody, called_for(old)) == [old, new], "one that is made again under its name is itself"
    assert entitled(everybody, called_for(stateful)) == [stateful]
    assert entitled(everybody, called_for(bare)) == [bare]
    by_hand = msgspec.convert({"metadata": {"name": "web", "namespace": "ns"}, "spec": {}}, TensorFusionWorkload)
    assert entitled(everybody, by_hand) == []


def test_a_workload_says_what_it_is_there_for_so_that_it_can_be_looked_up() -> None:
    job = Owner(api_version="ray.io/v1", kind="RayJob", name="web", uid="u")
    assert maker_in(called_for(Caller(client("a"), job))) == msgspec.structs.replace(job, uid="")
    by_hand = {"metadata": {"name": "web", "namespace": "ns"}, "spec": {}}
    assert maker_in(msgspec.convert(by_hand, TensorFusionWorkload)) is None
    for said, api in (("CronJob/web", "batch/v1"), ("Deployment/web", "apps/v1"), ("Pod/web", "v1")):
        older = {
            **by_hand,
            "metadata": {**by_hand["metadata"], "annotations": {"tensor-fusion.ai/workload-maker": said}},
        }
        found = maker_in(msgspec.convert(older, TensorFusionWorkload))
        assert found is not None
        assert (found.api_version, found.kind, found.name, found.uid) == (api, *said.split("/"), "")


def test_the_oldest_client_founds_a_workload_and_one_of_another_kind_and_the_same_name_is_a_stranger() -> None:
    bare = Caller(client("web", age=9), made("Pod", "web"))
    stateful = Caller(client("web-0", age=5), made("StatefulSet", "web"))
    assert entitled([stateful, bare], None) == [bare]
    assert entitled([], None) == []


def test_who_shared_workers_keeps_them_until_each_has_its_own_and_then_they_go() -> None:
    shared, upstream = worker("web-tf-worker-0"), worker("web-by-hand", address="10.0.0.9")
    moved, waits = connection("a", shared), connection("b", shared)
    own = worker("a-tf-vgpu", client="uid-a", address="10.0.0.2")
    wanted = {one.metadata.name: client_uid(one) for one in (moved, waits)}
    there = [shared, upstream, own]
    seats = staying([moved, waits], there) | own_workers([moved, waits], there)
    assert seats == {"uid-a": own.uid, "uid-b": shared.uid}
    plan = plan_dedicated("web", wanted, there, NOW, seats.values())
    assert (plan.make, plan.remove) == (("b-tf-vgpu",), ()), "b uses the shared one until its own is ready"
    last = worker("b-tf-vgpu", client="uid-b", address="10.0.0.3")
    there.append(last)
    seats = staying([moved, waits], there) | own_workers([moved, waits], there)
    plan = plan_dedicated("web", wanted, there, NOW, seats.values())
    assert (plan.make, plan.remove) == ((), (shared,)), "who else has made workers keeps them"
    for lost in (worker("web-tf-worker-0", ended=True), worker("web-tf-worker-0", ending=True)):
        assert staying([waits], [lost]) == {}
