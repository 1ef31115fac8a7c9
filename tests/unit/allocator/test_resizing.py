"""Pods that hold more or less where they stand: by the rules that hold for everybody, in one change, or not at all."""

import msgspec
import pytest

from bus import subjects
from bus.capacity import limits_of
from bus.invariants import LedgerChecker
from consumers.allocator.replay import Replay, bare
from consumers.allocator.resizing import SAME
from schemas.cluster import GpuInventory, Pool
from schemas.decision import Decision
from schemas.journal import Restore
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest
from schemas.quota import Budget, Quota
from schemas.requirements import Gang
from tests.unit.allocator.harness import MIB, NOW, Allocator, command, encoded

HALF = GpuRequest(pool="p", tflops_milli=50_000, vram_bytes=40_000 * MIB)


def more(tflops: int = 0, vram: int = 0, request: GpuRequest = HALF, **other) -> GpuRequest:
    changes = {"tflops_milli": tflops} | ({"vram_bytes": vram * MIB} if vram else {}) | other
    return msgspec.structs.replace(request, **changes)


class Plane(Allocator):
    """An allocator whose ledger is kept, checked and played again."""

    def __init__(self, *quotas: Quota) -> None:
        super().__init__(*quotas)
        self.records: dict[tuple[str, int], NodeRecord] = {}
        limits = {}
        for name in ("big", "small"):
            host = self.core.snapshot.host(name)
            inventory = GpuInventory(node=name, gpus=list(host.devices), observed_at=NOW)
            limits[name] = limits_of(host.node, inventory, Pool(name="p"))
        self.checker = LedgerChecker(limits)

    def store(self, flight) -> None:
        before = self.ledger_seq
        super().store(flight)
        for place, commit in enumerate(flight.commits, before + 1):
            self.records[commit.node, place] = commit.record()
            self.checker.apply(place, subjects.ledger_node(commit.node), encoded(commit.record()))
        for place, seal in enumerate(getattr(flight, "seals", ()), before + 1 + len(flight.commits)):
            self.checker.apply(place, seal.subject, encoded(seal.record))

    def resize(self, uid: str, request: GpuRequest, node: str = "big") -> str:
        """Ask for other amounts and return what is answered, committed if there was something to commit."""
        asked = msgspec.structs.replace(command(uid, request), node=node)
        answer = self.core.resize(asked, None)
        self.said()
        return answer

    def held(self, uid: str, node: str = "big"):
        return self.core.snapshot.held(node, uid)

    def amounts(self, uid: str, node: str = "big") -> tuple[int, int]:
        (gpu,) = self.held(uid, node).gpus
        return gpu.tflops_milli, gpu.vram_bytes // MIB


def test_a_pod_holds_other_amounts_in_one_change_and_is_as_old_as_before() -> None:
    plane = Plane()
    assert plane.ask("a", HALF).node == "big"
    plane.ask("other", more(10_000, 8_000))
    since = plane.core.mind.shelf.book("big").held["a"].since
    assert plane.resize("a", more(80_000, 60_000, tflops_limit_milli=90_000)) == ""
    assert plane.amounts("a") == (80_000, 60_000)
    record = plane.records["big", plane.ledger_seq]
    assert [(change.op, change.pod_uid) for change in record.changes] == [("add", "a")]
    (mine,) = [one for one in record.allocations if one.pod_uid == "a"]
    assert (mine.since, mine.tflops_limit_milli) == (since, 90_000)
    assert plane.resize("a", more(20_000, 16_000)) == ""
    assert plane.amounts("a") == (20_000, 16_000)
    assert plane.resize("a", more(20_000, 16_000)) == SAME
    assert not plane.checker.violations
    assert plane.core.mind.places.later() == []  # it stands once
    assert plane.ask("third", more(70_000, 40_000)).node == "big"  # what it gave up is free


@pytest.mark.parametrize(
    ("request_", "why"), [(more(95_000), "Compute"), (more(50_000, 79_000), "Vram")], ids=["compute", "vram"]
)
def test_what_the_gpu_does_not_have_is_refused_and_the_pod_keeps_what_it_holds(request_, why) -> None:
    plane = Plane()
    plane.ask("a", HALF)
    plane.ask("b", more(40_000, 30_000))
    before, records = plane.held("a"), plane.ledger_seq
    assert why.lower() in plane.resize("a", request_).lower()
    assert plane.held("a").says_as(before)
    assert plane.ledger_seq == records
    assert plane.resize("a", more(60_000, 50_000)) == ""  # exactly what there is


def test_a_quota_bounds_what_a_pod_may_grow_to_without_counting_it_twice() -> None:
    quota = Quota(namespace="ns", name="q", total=Budget(tflops_milli=100_000))
    plane = Plane(quota)
    plane.ask("a", HALF)
    plane.ask("b", more(30_000, 8_000))
    assert plane.core.quotas.counted("ns")[0].tflops_milli == 80_000
    assert "quota q" in plane.resize("a", more(71_000))
    assert plane.core.quotas.counted("ns")[0].tflops_milli == 80_000
    assert plane.resize("a", more(70_000)) == ""
    held, promised = plane.core.quotas.counted("ns")
    assert (held.tflops_milli, promised.tflops_milli) == (100_000, 0)
    assert plane.resize("a", more(10_000)) == ""
    assert plane.core.quotas.counted("ns")[0].tflops_milli == 40_000
    assert plane.ask("c", more(60_000, 8_000)).node
    assert not plane.checker.violations


def test_while_it_is_under_way_what_a_pod_gets_more_is_promised_and_nobody_else_has_it() -> None:
    quota = Quota(namespace="ns", name="q", total=Budget(tflops_milli=100_000))
    plane = Plane(quota)
    plane.ask("a", HALF)
    assert plane.core.resize(msgspec.structs.replace(command("a", more(80_000)), node="big"), None) == ""
    plane.core.schedule(command("b", more(30_000, 8_000)), None)
    said = plane.said()
    assert [one.decision.outcome for one in said if one.decision.pod_uid == "b"] == ["unschedulable"]
    assert plane.core.quotas.counted("ns")[1].tflops_milli == 0
    assert not plane.checker.violations


def test_a_quota_that_shrinks_before_it_leaves_takes_it_back() -> None:
    plane = Plane(Quota(namespace="ns", name="q", total=Budget(tflops_milli=100_000)))
    plane.ask("a", HALF)
    before = plane.held("a")
    token = object()
    assert plane.core.resize(msgspec.structs.replace(command("a", more(80_000)), node="big"), token) == ""
    plane.allow(Quota(namespace="ns", name="q", total=Budget(tflops_milli=60_000)))
    plane.core.flush()
    effects = plane.core.take_effects()
    assert (effects.commits, effects.again) == ([], [token])
    assert plane.held("a").says_as(before)
    held, promised = plane.core.quotas.counted("ns")
    assert (held.tflops_milli, promised.tflops_milli) == (50_000, 0)


def test_one_that_somebody_else_came_before_is_given_back_and_the_ledger_counts() -> None:
    plane = Plane()
    plane.ask("a", HALF)
    token = object()
    assert plane.core.resize(msgspec.structs.replace(command("a", more(80_000)), node="big"), token) == ""
    plane.core.flush()
    assert len(plane.core.take_effects().commits) == 1
    # Another allocator has the pod hold something else.
    before = plane.records["big", plane.ledger_seq]
    (mine,) = before.allocations
    theirs = msgspec.structs.replace(mine, gpus=(msgspec.structs.replace(mine.gpus[0], tflops_milli=60_000),))
    plane.ledger_seq += 1
    plane.hear_node("big", msgspec.structs.replace(before, txn="other:1", allocations=(theirs,), changes=()))
    effects = plane.core.take_effects()
    assert (effects.again, effects.commits) == ([token], [])
    assert plane.amounts("a") == (60_000, 40_000)


def test_what_another_allocator_has_a_pod_hold_counts_against_the_quota() -> None:
    plane = Plane(Quota(namespace="ns", name="q", total=Budget(tflops_milli=100_000)))
    plane.ask("a", HALF)
    (key,) = [key for key in plane.records if key[0] == "big"]
    record = plane.records[key]
    (mine,) = record.allocations
    theirs = msgspec.structs.replace(mine, gpus=(msgspec.structs.replace(mine.gpus[0], tflops_milli=90_000),))
    plane.ledger_seq += 1
    plane.hear_node("big", msgspec.structs.replace(record, txn="other:1", allocations=(theirs,), changes=()))
    assert plane.core.quotas.counted("ns")[0].tflops_milli == 90_000
    assert "quota q" in plane.ask("b", more(20_000, 8_000)).message


def test_a_pod_that_ends_while_it_is_under_way_gives_back_all() -> None:
    plane = Plane()
    plane.ask("a", HALF)
    assert plane.core.resize(msgspec.structs.replace(command("a", more(80_000)), node="big"), None) == ""
    plane.end("a")
    plane.said()
    assert plane.held("a") is None
    assert plane.records["big", plane.ledger_seq].allocations == ()
    assert not plane.checker.violations


@pytest.mark.parametrize(
    ("request_", "why"),
    [(more(60_000, dedicated=True), "to itself"), (more(60_000, gang=Gang(key="ns/g", min_members=1)), "gangs")],
)
def test_pods_whose_amounts_are_fixed_keep_them(request_: GpuRequest, why: str) -> None:
    plane = Plane()
    plane.ask("a", HALF)
    assert why in plane.resize("a", request_)
    assert plane.amounts("a") == (50_000, 40_000)


def test_a_pod_that_stands_elsewhere_or_nowhere_is_not_touched() -> None:
    plane = Plane()
    plane.ask("a", HALF)
    assert "does not stand" in plane.resize("a", more(60_000), node="small")
    assert "does not stand" in plane.resize("b", more(60_000))


def test_every_decision_comes_out_the_same_when_it_is_thought_again() -> None:
    def allowed(tflops: int) -> Quota:
        return Quota(namespace="ns", name="q", total=Budget(tflops_milli=tflops))

    plane = Plane(allowed(150_000))
    plane.ask("a", HALF)
    plane.ask("b", more(30_000, 8_000))
    plane.resize("a", more(60_000, 50_000))
    plane.resize("a", more(95_000))  # the GPU has no room
    plane.resize("b", more(125_000))  # nor has the quota
    plane.core.resize(msgspec.structs.replace(command("b", more(35_000, 8_000)), node="big"), None)
    plane.allow(allowed(92_000))  # before it leaves
    plane.said()
    plane.allow(allowed(150_000))
    plane.ask("c", more(20_000, 8_000))

    def listed(node: str, seq: int):
        return plane.records[node, seq].charges()

    replay = Replay("a", plane.states, listed)
    turns = plane.core.journal.take()
    assert any(isinstance(step, Restore) for turn in turns for step in turn.steps)
    again = {one.basis.ordinal: one for turn in turns for one in replay.play(turn)}
    changes = [change for record in plane.records.values() for change in record.changes]
    decided = [msgspec.json.decode(change.decision, type=Decision) for change in changes]
    assert len(decided) == 4
    assert [bare(one) for one in decided] == [again[one.basis.ordinal] for one in decided]
    for node in ("big", "small"):
        mine, theirs = plane.core.snapshot.allocations(node), replay.snapshot.allocations(node)
        assert len(mine) == len(theirs)
        assert all(one.says_as(other) for one, other in zip(mine, theirs, strict=True))


PERCENT = GpuRequest(pool="p", compute_milli=100, compute_limit_milli=200, vram_bytes=8_000 * MIB)


def test_a_limit_that_alone_changes_is_carried_out_in_either_unit() -> None:
    plane = Plane()
    plane.ask("a", PERCENT)
    assert plane.held("a").tflops_limit_milli == 20_000
    assert plane.resize("a", msgspec.structs.replace(PERCENT, compute_limit_milli=900)) == ""
    assert plane.held("a").tflops_limit_milli == 90_000
    assert plane.resize("a", msgspec.structs.replace(PERCENT, compute_limit_milli=900)) == SAME
    plane.ask("b", more(10_000, 8_000, tflops_limit_milli=20_000))
    assert plane.resize("b", more(10_000, 8_000, tflops_limit_milli=30_000)) == ""
    assert plane.held("b").tflops_limit_milli == 30_000
    assert not plane.checker.violations


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (more(80_000, tflops_limit_milli=60_000), "limit of 60 TFLOPS is below the 80"),
        (more(0, compute_milli=800, tflops_limit_milli=60_000), "limit of 60 TFLOPS is below the 80"),
        (more(80_000, compute_limit_milli=200), "limit of 20 TFLOPS is below the 80"),
        (more(50_000, 60_000, vram_limit_bytes=40_000 * MIB), "bytes of VRAM is below"),
    ],
    ids=["tflops", "percent-over-tflops", "tflops-over-percent", "vram"],
)
def test_a_limit_below_what_would_be_granted_is_refused_in_whatever_units(request_: GpuRequest, words: str) -> None:
    plane = Plane()
    plane.ask("a", HALF)
    before, records = plane.held("a"), plane.ledger_seq
    assert words in plane.resize("a", request_)
    assert plane.held("a").says_as(before)
    assert plane.ledger_seq == records
