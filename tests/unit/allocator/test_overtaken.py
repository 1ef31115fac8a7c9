"""What decisions tell of placements that others came before: when they were made, and up to when they counted."""

from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest
from schemas.quota import Budget, Quota
from tests.unit.allocator.harness import BIG, MIB, NOW, Allocator, command
from tests.unit.allocator.test_gangs import member

SHARE = GpuRequest(pool="p", compute_milli=100)


def on(model: str, share: int = 100) -> GpuRequest:
    return GpuRequest(pool="p", compute_milli=share, models=(model,))


def seen(allocator: Allocator) -> dict[int, set[str]]:
    """Return what each decision from now on sees of the nodes, by ordinal."""
    found: dict[int, set[str]] = {}
    decider, snapshot = allocator.core.decider, allocator.core.snapshot
    plain = decider._basis

    def basis():
        made = plain()
        found[made.ordinal] = {one.pod_uid for node in snapshot.nodes() for one in snapshot.allocations(node)}
        return made

    decider._basis = basis
    return found


def test_a_placement_is_told_to_count_up_to_the_first_decision_that_does_not_see_it() -> None:
    """A bundle over two nodes is lost while a gang that waits behind it is decided anew first."""
    allocator = Allocator(Quota(namespace="ns", name="q", total=Budget(workers=9)))
    spare = GpuDevice(uuid="third0", index=0, model="third", tflops_milli=100_000, vram_bytes=BIG * MIB)
    allocator.say("node", "third", Node(name="third", pool="p"))
    allocator.say("gpu", "third", GpuInventory(node="third", gpus=[spare], observed_at=NOW))
    ordinals = seen(allocator)
    for uid, model in (("one", "big"), ("two", "small")):
        allocator.core.schedule(command(uid, on(model)), None)
    (bundle,) = allocator.leave()
    assert {commit.node for commit in bundle.commits} == {"big", "small"}
    first, second = member(2, on("third")), member(2, on("third"))
    allocator.core.schedule(command("a", first), None)
    assert not allocator.leave()  # the first member waits for the second
    allocator.core.schedule(command("b", second), None)
    assert not allocator.leave()  # both wait for the bundle

    theirs = Allocation(pod_uid="a", namespace="ns", name="a", pool="p", gang="ns/w", cpu_milli=1)
    allocator.ledger_seq += 1
    allocator.hear_node("big", NodeRecord(node="big", txn="z:1", allocations=(theirs,), changes=()))
    tried = {
        item.uid: item.decision.attempts[0]
        for item in allocator.core.mind.pending.values()
        if item.uid in {"one", "two"}
    }
    assert tried.keys() == {"one", "two"}
    for uid, attempt in tried.items():
        after = [number for number, pods in ordinals.items() if number > attempt.decided and uid not in pods]
        assert attempt.dropped == min(after)
    assert len({attempt.dropped for attempt in tried.values()}) == 1


def test_of_a_record_that_another_one_replaces_each_placement_is_told() -> None:
    allocator = Allocator()
    ordinals = seen(allocator)
    for uid in ("one", "two", "three"):
        allocator.core.schedule(command(uid, on("big", 400 if uid == "three" else 100)), None)
    allocator.leave()
    foreign = Allocation(pod_uid="f", namespace="o", name="f", pool="p", cpu_milli=1)
    allocator.ledger_seq += 1
    allocator.hear_node("big", NodeRecord(node="big", txn="z:1", allocations=(foreign,), changes=()))
    decided = [item.decision for item in allocator.core.mind.pending.values()]
    assert [len(decision.attempts) for decision in decided] == [1, 1, 1]
    assert {decision.attempts[0].dropped for decision in decided} == {min(d.basis.ordinal for d in decided)}
    assert [decision.attempts[0].decided for decision in decided] == [1, 2, 3]
    assert ordinals[decided[0].basis.ordinal] == {"f"}
