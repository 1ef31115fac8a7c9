"""Room that several pods, allocators or tenants are after at once: nobody goes in vain, and nobody is looked at for nothing."""

import random

import msgspec

from consumers.allocator import room
from consumers.allocator.engine import Snapshot, preemption
from consumers.allocator.engine.ranks import outranks
from schemas import reasons
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.decision import PodRef
from schemas.journal import Adopt
from schemas.ledger import HOLD, Allocation, Hold, NodeRecord
from schemas.pod import GpuRequest, Waiting
from schemas.preemption import DisruptionBudget
from schemas.quota import Budget, Quota
from tests.unit.allocator.harness import NOW, Allocator, command
from tests.unit.allocator.test_rooms import HIGH, HIGHER, LOW, allocator, held, leave, outcomes

SMALL = msgspec.structs.replace(LOW, models=("small",))
SMALL_HIGH = msgspec.structs.replace(SMALL, priority=5)
ONE_GPU = Quota(namespace="ns", name="q", total=Budget(gpus=1))
WAITS = ("unschedulable", reasons.AWAITING_EVICTION)


def full(*quotas: Quota) -> Allocator:
    """Four pods of low rank on four GPUs."""
    plane = allocator()
    for quota in quotas:
        plane.allow(quota)
    for number in range(4):
        plane.ask(f"low{number}", SMALL, "other")
    return plane


def keeps_for(plane: Allocator, uid: str, victim: str) -> NodeRecord:
    """What another allocator writes that makes room for a pod."""
    here = {one.pod_uid: one for one in plane.core.snapshot.allocations("small")}
    kept = msgspec.structs.replace(here[victim], pod_uid=uid, namespace="ns", name=uid, priority=5, since=0)
    hold = Hold(allocation=kept, victims=(PodRef("other", victim, victim),), until_s=1600)
    return NodeRecord(node="small", txn="b:1", allocations=tuple(here.values()), changes=(), holds=(hold,))


# Quotas


def test_room_that_is_kept_counts_against_the_quota_so_that_nobody_goes_for_a_pod_that_may_not_come() -> None:
    plane = full(ONE_GPU)
    for number in range(3):
        plane.core.schedule(command(f"high{number}", SMALL_HIGH), None)
    said = outcomes(plane.said())
    assert [uid for uid, (outcome, _) in said.items() if outcome == "evicted"] == ["low3"]
    assert {uid for uid in held(plane, "small") if uid.startswith(HOLD)} == {"hold/high0"}
    assert plane.ask("high3", msgspec.structs.replace(SMALL_HIGH, cpu_milli=1)).reason == reasons.QUOTA
    free = plane.core.quotas.counted("ns")
    assert free is not None
    assert free[1].gpus == 0  # nothing is promised but for that decision


def test_room_is_kept_for_as_many_pods_as_the_quota_allows() -> None:
    plane = full(Quota(namespace="ns", name="q", total=Budget(gpus=2)))
    found = [plane.ask(f"high{number}", SMALL_HIGH).reason for number in range(3)]
    assert found == [reasons.AWAITING_EVICTION, reasons.AWAITING_EVICTION, reasons.QUOTA]


def test_what_a_quota_counts_with_kept_room_is_written_down_with_the_decision() -> None:
    plane = full(Quota(namespace="ns", name="q", total=Budget(gpus=2)))
    plane.ask("high0", SMALL_HIGH)
    plane.core.journal.take()
    plane.core.schedule(command("high1", SMALL_HIGH), None)
    plane.said()
    steps = [step for turn in plane.core.journal.take() for step in turn.steps]
    before = [type(step).__name__ for step in steps].index("Preempt") - 1
    assert [one.promised.gpus for one in steps[before : before + 1]] == [1]


def test_of_two_allocators_that_make_room_at_once_the_later_one_gives_it_up_before_anybody_goes() -> None:
    plane = full(ONE_GPU)
    plane.ask("large", LOW, "other")
    plane.core.schedule(command("high", SMALL_HIGH), None)
    flights = plane.leave()
    (large,) = plane.core.snapshot.allocations("big")
    kept = msgspec.structs.replace(large, pod_uid="first", namespace="ns", name="first", priority=5, since=0)
    hold = Hold(allocation=kept, victims=(PodRef("other", "large", "large"),), until_s=1600)
    plane.ledger_seq += 1
    plane.hear_node("big", NodeRecord(node="big", txn="b:1", allocations=(large,), changes=(), holds=(hold,)))
    for flight in flights:
        plane.store(flight)
    said = plane.said()
    assert outcomes(said) == {"high": WAITS}
    assert [one.evict for one in said] == [None]
    assert "hold/high" not in held(plane, "small")
    assert plane.ask("high", SMALL_HIGH).reason == reasons.QUOTA


def test_kept_room_is_given_up_when_the_quota_refuses_its_pod() -> None:
    plane = full()
    plane.ask("high", SMALL_HIGH)
    plane.allow(Quota(namespace="ns", name="q", total=Budget(gpus=0)))
    assert plane.ask("high", SMALL_HIGH).reason in {reasons.QUOTA, reasons.QUOTA_SINGLE}
    assert plane.core.rooms.first("high") is None
    assert "hold/high" not in held(plane, "small")


# Ages


def test_of_pods_alike_the_youngest_goes_whoever_has_placed_it() -> None:
    plane = full()
    plane.core.schedule(command("high", SMALL_HIGH), None)
    assert outcomes(plane.said())["low3"] == ("evicted", "Preempted")
    (step,) = [step for turn in plane.core.journal.take() for step in turn.steps if isinstance(step, Adopt)]
    assert (step.node, step.seq) == ("small", 4)  # a replay learns it from the same record


# Namespaces


def test_room_that_pods_of_one_namespace_have_left_is_not_for_another_one() -> None:
    plane = allocator("namespace")
    plane.ask("low", LOW)
    assert plane.ask("high", HIGH).reason == reasons.AWAITING_EVICTION
    leave(plane, "low")
    assert plane.ask("higher", HIGHER, "other").reason == reasons.COMPUTE
    assert held(plane) == {"hold/high"}
    assert plane.ask("higher", HIGHER).reason == reasons.AWAITING_EVICTION
    assert held(plane) == {"hold/higher"}


def test_room_of_another_namespace_stays_where_pods_of_the_own_one_go() -> None:
    plane = allocator("namespace")
    for number in range(4):
        plane.ask(f"low{number}", SMALL, "other" if number < 3 else "ns")
    assert plane.ask("other", SMALL_HIGH, "other").reason == reasons.AWAITING_EVICTION
    plane.core.schedule(command("high", msgspec.structs.replace(SMALL, priority=9)), None)
    assert outcomes(plane.said()) == {"low3": ("evicted", "Preempted"), "high": WAITS}
    assert "hold/other" in held(plane, "small")


# Who is looked at, and how often


def test_of_alike_pods_one_is_looked_at_when_it_is_in_vain(monkeypatch) -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.say("disruption", "ns", "b", DisruptionBudget(namespace="ns", name="b", allowed=0, pods=("low",)))
    searches = []
    monkeypatch.setattr(room, "select", lambda *args: searches.append(args) or preemption.select(*args))
    for number in range(20):
        plane.core.schedule(command(f"high{number}", HIGH), None)
    assert {reason for _, reason in outcomes(plane.said()).values()} == {reasons.COMPUTE}
    assert len(searches) == 1


def test_no_pod_is_looked_at_where_nobody_is_outranked(monkeypatch) -> None:
    plane = full()
    monkeypatch.setattr(preemption, "_nearest", None)
    for number in range(20):
        other = msgspec.structs.replace(SMALL, cpu_milli=number)
        plane.core.schedule(command(f"alike{number}", other), None)
        assert not plane.core.rooms.sought
    plane.said()
    plane.core.sweep()
    assert plane.core.take_effects().wakes == []


def test_a_sweep_looks_at_no_pod_itself_and_takes_turns_with_those_it_tries(monkeypatch) -> None:
    plane = allocator()
    plane.ask("low", LOW)
    for number in range(40):
        other = msgspec.structs.replace(HIGH, cpu_milli=number)
        plane.say(
            *("waiting", "p", "ns", f"high{number}"),
            Waiting(namespace="ns", name=f"high{number}", uid=f"high{number}", request=other, reason=reasons.COMPUTE,
                    state_seq=plane.state_seq, ledger_seq=plane.ledger_seq, since=NOW),
        )  # fmt: skip
    monkeypatch.setattr(preemption, "_nearest", None)
    tried: list[str] = []
    for _ in range(3):
        plane.now_s += 61
        plane.say("pool", "p", plane.core.snapshot.pools()["p"])
        plane.core.sweep()
        tried += [pod.uid for pod, _ in plane.core.take_effects().wakes]
    assert len(tried) == 48
    assert len(set(tried)) == 40


def test_ranks_are_counted_as_pods_come_and_go() -> None:
    draw = random.Random(5)
    snapshot, pods = Snapshot(), []
    for number in range(30):
        key = HOLD if number % 5 == 0 else ""
        pods.append(
            Allocation(pod_uid=f"{key}p{number}", namespace=f"ns{number % 3}", name="n", pool="p", gpus=(),
                       priority=number % 4, qos=("low", "medium")[number % 2])
        )  # fmt: skip
    stands: dict[str, dict[str, Allocation]] = {"a": {}, "b": {}}
    pool_of: dict[str, str] = {}
    for _ in range(600):
        node, pod = draw.choice("ab"), draw.choice(pods)
        match draw.randrange(5):
            case 0:
                snapshot.remove(node, pod.pod_uid)
                stands[node].pop(pod.pod_uid, None)
            case 1:
                chosen = draw.sample(pods, draw.randrange(4))
                snapshot.set_allocations(node, chosen)
                stands[node] = {one.pod_uid: one for one in chosen}
            case 2:
                pool_of[node] = draw.choice("pq")
                snapshot.put_node(Node(name=node, pool=pool_of[node]))
            case 3 if draw.random() < 0.3:
                pool_of.pop(node, None)
                snapshot.remove_node(node)
            case _:
                changed = msgspec.structs.replace(pod, priority=draw.randrange(4))
                snapshot.add(node, changed)
                stands[node][pod.pod_uid] = changed
        here = [one for name, found in stands.items() if pool_of.get(name) == "p" for one in found.values()]
        for priority in range(5):
            request = GpuRequest(pool="p", priority=priority, qos="low")
            beaten = [one for one in here if outranks(request, one)]
            near = [one for one in beaten if one.namespace == "ns1"]
            assert snapshot.standing.outranked(request, "ns1", "cluster") == bool(beaten)
            assert snapshot.standing.outranked(request, "ns1", "namespace") == bool(near)


# What changes while a pod is to be looked at


def test_a_pod_that_asks_for_something_else_meanwhile_is_placed_anew() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.core.schedule(command("high", HIGH), "first")
    plane.core.schedule(command("high", SMALL_HIGH), "second")
    said = plane.said()
    assert [(one.token, one.decision.outcome, one.decision.node) for one in said] == [
        ("first", "unschedulable", ""),
        ("second", "allocated", "small"),
    ]
    assert held(plane) == {"low"}


def test_a_pod_for_which_another_allocator_makes_room_first_waits_for_that() -> None:
    plane = full()
    plane.core.schedule(command("high", SMALL_HIGH), None)
    plane.ledger_seq += 1
    plane.hear_node("small", keeps_for(plane, "high", "low3"))
    assert outcomes(plane.said()) == {"high": WAITS}
    (known,) = plane.core.rooms.all_of("high")
    assert [victim.uid for victim in known.hold.victims] == ["low3"]


def test_nobody_goes_for_a_pod_that_has_ended_before_its_room_is_seen() -> None:
    plane = full()
    plane.core.schedule(command("high", SMALL_HIGH), None)
    flights = plane.leave()
    plane.end("high")
    for flight in flights:
        plane.store(flight)
    said = plane.said()
    assert {one.decision.outcome for one in said} == {"unschedulable"}
    assert [one.evict for one in said] == [None]
    assert not any(uid.startswith(HOLD) for uid in held(plane, "small"))
    plane.end("high")
    assert outcomes(plane.said()) == {"high": ("released", "Deleted")}


def test_room_on_a_node_that_takes_no_pods_is_given_up_and_sought_elsewhere() -> None:
    plane = allocator()
    plane.say("node", "big2", Node(name="big2", pool="p"))
    gpu = GpuDevice(uuid="big20", index=0, model="big", tflops_milli=100_000, vram_bytes=80 * 2**30)
    plane.say("gpu", "big2", GpuInventory(node="big2", gpus=[gpu], observed_at=NOW))
    plane.ask("low0", LOW)
    plane.ask("low1", LOW)
    first = plane.ask("high", HIGH).preemption.node
    plane.say("node", first, Node(name=first, pool="p", ready=False))
    plane.core.sweep()
    plane.said()
    assert "hold/high" not in held(plane, first)
    found = plane.ask("high", HIGH)
    assert found.reason == reasons.AWAITING_EVICTION
    assert {found.preemption.node} == {"big", "big2"} - {first}


def test_a_pod_whose_command_has_gone_to_somebody_else_is_looked_at_no_more() -> None:
    plane = full()
    plane.core.schedule(command("high", SMALL_HIGH), "lost")
    plane.core.make_room(lambda token: token == "lost")
    assert not plane.core.rooms.sought
    assert plane.said() == []
    assert not plane.core.tokens()
