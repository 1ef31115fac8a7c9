"""Ports of nodes: who asks for one, which is free, and where it is written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from consumers.mutator.context import Context
from consumers.mutator.mutate import Mutation, mutate
from consumers.mutator.options import Options
from consumers.mutator.ports import (
    PORT_LABEL,
    Place,
    PortWish,
    block_of,
    blocks,
    held,
    port_of,
    take_port,
    written_into,
)
from consumers.mutator.slots import LEASE, confirm, give_back
from consumers.mutator.tensorfusion import scheduler_of
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults
from schemas.dialects import tf_keys as keys
from schemas.slots import Slot, WorkloadSlots
from tests.unit.mutator.test_mutate import apply

KEY = "tensor-fusion.ai/"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOUNDS = (42_000, 42_003)
ASKS = {f"{KEY}tflops-request": "10", f"{KEY}vram-request": "1Gi"}
WISH = PortWish(admission="a1", taken="", place=Place(0, 0), annotated=True)


def pod(port: Any = None, *, labels: dict[str, str] | None = None, hami: bool = False, **spec: Any) -> dict[str, Any]:
    asked = {f"{KEY}host-port": "auto", f"{KEY}port-name": "http"} if labels is None else labels
    ports = [{"containerPort": 9, "name": "other"}, port or {"containerPort": 80, "name": "http"}]
    container: dict[str, Any] = {"name": "main", "image": "i", "ports": ports}
    metadata: dict[str, Any] = {"name": "app", "labels": {f"{KEY}enabled": "true", **asked}, "annotations": ASKS}
    if hami:
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        metadata = {"name": "app", "labels": asked}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def admitted(target: dict[str, Any], admission: str = "a1") -> Mutation:
    context = Context(
        pools=frozenset({"shared"}),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
    )
    return mutate(msgspec.json.encode(target), "ml", admission, context)


@pytest.mark.parametrize("hami", [False, True])
def test_the_port_is_written_into_pod_annotation_and_label_and_a_second_time_into_the_same(hami: bool) -> None:
    target = pod(hami=hami)
    found = admitted(target)
    assert found.port is not None
    changed = apply(target, written_into(found.patch, found.port, "42001.a1"))
    ports = changed["spec"]["containers"][0]["ports"]
    assert (ports[1]["hostPort"], "hostPort" in ports[0]) == (42_001, False)
    assert changed["metadata"]["annotations"][keys.PORT_NUMBER] == "42001"
    assert changed["metadata"]["labels"][PORT_LABEL] == "42001.a1"
    again = admitted(changed, "a2")
    assert again.port is not None
    assert again.port.taken == "42001.a1"
    assert apply(changed, written_into(again.patch, again.port, "42001.a1")) == changed


REFUSED = {
    "another word": (pod(labels={f"{KEY}host-port": "yes", f"{KEY}port-name": "http"}), "use one of auto"),
    "no name": (pod(labels={f"{KEY}host-port": "auto"}), "is missing beside host-port"),
    "no such port": (pod(labels={f"{KEY}host-port": "auto", f"{KEY}port-name": "web"}), "use one of: http, other"),
    "the node's network": (pod(hostNetwork=True), "hostNetwork is true"),
    "a port of its own": (pod({"containerPort": 80, "name": "http", "hostPort": 8080}), "is stated already"),
}


@pytest.mark.parametrize(("target", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_granted_is_refused(target: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        admitted(target)


def test_the_first_free_port_is_taken_and_none_twice() -> None:
    record = WorkloadSlots(owner=block_of(42_000))
    slots = []
    for number in range(3):
        record, slot = take_port(record, msgspec.structs.replace(WISH, admission=f"a{number}"), BOUNDS, NOW)
        slots.append(slot)
    assert [port_of(slot) for slot in slots] == [42_000, 42_001, 42_002]
    assert take_port(record, WISH, BOUNDS, NOW) == (record, "")
    assert held(record, WISH) == "42001.a1", "the same admission, asked again"
    record = give_back(confirm(confirm(record, slots[0], "u0", NOW), slots[1], "u1", NOW), slots[0], "u0")
    assert held(record, WISH) == "", "a pod has it, and this one is another"
    later = NOW + LEASE
    after, slot = take_port(record, WISH, BOUNDS, later)
    assert port_of(slot) == 42_000
    assert [one.id for one in after.slots] == [slots[1], slot], "a port that no pod was seen with is free again"


def test_ports_lie_in_blocks_of_which_the_bounds_cut_the_first_and_the_last() -> None:
    assert list(blocks(42_000, 42_500)) == ["host-ports/41984", "host-ports/42240", "host-ports/42496"]
    low, high = WorkloadSlots(owner="host-ports/41984"), WorkloadSlots(owner="host-ports/42496")
    assert port_of(take_port(low, WISH, (42_000, 42_500), NOW)[1]) == 42_000
    assert port_of(take_port(high, WISH, (42_000, 42_500), NOW)[1]) == 42_496
    assert block_of(42_499) == "host-ports/42496"
    full = WorkloadSlots(
        owner="host-ports/42496", slots=tuple(Slot(id=f"{port}.x", taken_at=NOW) for port in range(42_496, 42_500))
    )
    assert take_port(full, WISH, (42_000, 42_500), NOW + timedelta(seconds=1)) == (full, "")


@pytest.mark.parametrize("written", ["42000", "62000-42000", "0-10", "1-70000", "a-b"])
def test_a_range_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"clusterHostPortRange is .* write FIRST-END"):
        Options(cluster_host_port_range=written)


@pytest.mark.parametrize("label", ["", "s1", "x.y", "123456.a", "-1.a"])
def test_other_labels_are_no_ports(label: str) -> None:
    assert port_of(label) == 0


def test_a_label_that_is_somebody_else_s_frees_nothing_and_takes_nothing() -> None:
    record, slot = take_port(WorkloadSlots(owner=block_of(42_000)), WISH, BOUNDS, NOW)
    record = confirm(record, slot, "mine", NOW)
    assert confirm(record, slot, "forged", NOW) is record
    assert give_back(record, slot, "forged") is record
    assert give_back(record, slot, "mine").slots == ()


def test_labels_that_only_we_give_are_taken_from_pods_that_have_asked_for_nothing() -> None:
    target = pod(labels={PORT_LABEL: "42000.a1", "gpubus.io/slot": "copied"})
    assert {PORT_LABEL, "gpubus.io/slot"}.isdisjoint(apply(target, admitted(target).patch)["metadata"]["labels"])


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_stated_port_that_another_pod_may_be_given_is_refused(kind: str) -> None:
    target = pod(labels={})
    taker = {"name": "taker", "image": "i", "ports": [{"containerPort": 80, "hostPort": 61_999}]}
    target["spec"][kind] = [*target["spec"].get(kind, ()), taker]
    target["metadata"]["annotations"] = {**ASKS, f"{KEY}inject-container": "main"}
    with pytest.raises(RequestError, match=r"container taker hostPort: '61999' .* outside 42000 to 61999"):
        admitted(target)
    taker["ports"][0]["hostPort"] = 62_000  # the first after the range
    admitted(target)
    # Nobody has given it to this pod, whatever its label says.
    taker["ports"][0]["hostPort"] = 42_000
    target["metadata"]["labels"][PORT_LABEL] = "42000.a1"
    with pytest.raises(RequestError, match="42000"):
        admitted(target)


def test_a_port_that_the_pod_states_is_for_kube_scheduler_to_promise_and_one_that_we_gave_is_not() -> None:
    options = Options(extender_scheduler="stock")
    stated = pod({"containerPort": 80, "name": "http", "hostPort": 8080}, labels={})
    assert scheduler_of(stated, options, "ours") == "stock"
    given = pod({"containerPort": 80, "name": "http", "hostPort": 42_000}, labels={PORT_LABEL: "42000.a1"})
    assert scheduler_of(given, options, "ours") == "ours"
