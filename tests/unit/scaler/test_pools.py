"""What is seen of a pool's nodes: whose they are, who is on them, and what must never be given back or given up."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bus import subjects
from bus.codec import encode
from bus.follower import Record
from consumers.scaler.capacity import CLAIM_WITHIN, plan_capacity
from consumers.scaler.claims import Found
from consumers.scaler.noted import noted
from consumers.scaler.pools import CLAIM_LABEL, MOST_PODS, Pools
from consumers.scaler.sizes import LEAVING_LABEL, Claim
from schemas.capacity import Offer, PoolCapacity
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.event import Event
from schemas.inspection import Emptiable
from schemas.kube.resources import CustomResource
from schemas.ledger import Allocation, NodeRecord
from schemas.node_rules import Taint
from schemas.pod import GpuRequest, Waiting
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 5, 1, tzinfo=UTC)
OLD = NOW - timedelta(hours=2)
GIB = 2**30
OFFER = Offer(instance_type="g", gpus=2, model="T4", tflops_milli=65_000, vram_bytes=16 * GIB)
CLAIM = Claim(name="p-0", offer=OFFER, made_at=OLD, node="p-0", uid="1")


class Told:
    """Pools that were told of things."""

    def __init__(self, period: str = "5m") -> None:
        self.pools = Pools()
        self._seq = 0
        manager = {"provisioningMode": "Provisioned", "nodeCompaction": {"period": period}}
        for name in ("p", "q"):
            resource = CustomResource(
                plural="gpupools", namespace="", name=name, uid=name, labels={}, annotations={},
                spec={"nodeManagerConfig": manager},
            )  # fmt: skip
            self.state(("config", "gpupools", "", name), resource)

    def record(self, where: str, data: msgspec.Struct) -> Record:
        self._seq += 1
        event = Event(id=where, source="/t", type=TYPE_NAMES[type(data)], subject="x", time=NOW, data=data)
        return Record(subject=where, seq=self._seq, payload=encode(event))

    def state(self, names: tuple[str, ...], data: msgspec.Struct) -> None:
        self.pools.on_state(self.record(subjects.state(*names), data))

    def node(self, name: str, pool: str = "p", *, used_by: str = "", **more) -> None:
        self.state(("node", name), Node(name=name, pool=pool, **more))
        gpus = [
            GpuDevice(
                uuid=f"{name}-{n}", index=n, model="T4", tflops_milli=65_000, vram_bytes=16 * GIB, used_by=used_by
            )
            for n in (0, 1)
        ]
        self.state(("gpu", name), GpuInventory(node=name, gpus=gpus, observed_at=NOW))

    def held(self, name: str) -> None:
        allocation = Allocation(pod_uid="u", namespace="ns", name="train", pool="p")
        record = NodeRecord(node=name, txn="t", allocations=(allocation,), changes=())
        self.pools.on_ledger(self.record(subjects.ledger_node(name), record))


LEAVING = (Taint(key=LEAVING_LABEL, value="true", effect="NoSchedule"),)
BEFORE = PoolCapacity(pool="p", claims={"p-0": OLD}, idle_since={"p-0": OLD})


def found(*claims: Claim, bound: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Found:
    return Found(
        claims=claims, refused=(), names=frozenset((*names, *(one.name for one in claims))), bound=frozenset(bound)
    )


def plan(told: Told, before: PoolCapacity = BEFORE, claims: Found | None = None):
    return plan_capacity(told.pools.view("p", before, claims or found(CLAIM), (OFFER,), NOW), NOW)


def test_a_node_that_came_is_never_given_up_whatever_becomes_of_what_is_heard_of_it():
    told = Told()
    assert [one.name for one in plan(told).give_up] == ["p-0"]  # it never came
    told.node("p-0", pool="q")
    told.held("p-0")
    assert told.pools.came(BEFORE, found(CLAIM)) == ("p-0",)
    assert plan(told).give_up == ()
    gone = Told()  # nobody speaks of the node any more
    assert plan(gone, msgspec.structs.replace(BEFORE, came=("p-0",))).give_up == ()
    assert plan(gone, claims=found(CLAIM, bound=("p-0",))).give_up == ()
    assert NOW - OLD > CLAIM_WITHIN


def test_an_idle_node_is_closed_then_given_back_and_one_whose_claim_is_gone_is_never_opened():
    told = Told()
    told.node("p-0")
    assert [one.name for one in plan(told).close] == ["p-0"]
    told.node("p-0", taints=LEAVING)
    closed = msgspec.structs.replace(BEFORE, closed=("p-0",))
    assert [one.name for one in plan(told, closed).remove] == ["p-0"]
    for claims in (found(), found(msgspec.structs.replace(CLAIM, ending=True))):
        left = plan(told, closed, claims)
        assert (left.reopen, left.close, left.remove) == ((), (), ())


@pytest.mark.parametrize(
    "more", [{"unschedulable": True}, {"used_by": "nvidia-device-plugin"}, {"claimed_gpus": ("p-0-0",)},
             {"labels": {"tensor-fusion.ai/do-not-disrupt": "true"}}, {"keep": True}]
)  # fmt: skip
def test_a_node_that_is_closed_by_others_used_by_others_or_to_be_kept_is_left_alone(more):
    told = Told()
    told.node("p-0", **more)
    left = plan(told)
    assert (left.close, left.remove, left.reopen) == ((), (), ())


def test_a_node_that_pods_came_to_is_opened_again_and_one_of_two_with_a_claim_stays():
    told = Told()
    told.node("p-0", taints=LEAVING)
    told.held("p-0")
    assert [one.name for one in plan(told, msgspec.structs.replace(BEFORE, closed=("p-0",))).reopen] == ["p-0"]
    twins = Told()
    twins.node("p-0")
    twins.node("other", labels={CLAIM_LABEL: "p-0"})
    assert plan(twins).close == ()


def test_names_that_are_taken_are_not_given_again():
    told = Told()
    told.node("p-3", pool="q")
    view = told.pools.view("p", BEFORE, found(CLAIM, names=("p-1",)), (OFFER,), NOW)
    assert view.numbers == {0, 1, 3}


def test_a_period_that_cannot_be_followed_is_refused_by_name():
    left = plan(Told(period="99999999h"))
    assert "nodeCompaction.period" in left.message
    assert (left.orders, left.close, left.remove) == ((), (), ())


def test_what_an_operator_cordons_while_we_have_it_closed_is_not_given_back_and_our_taint_is_taken_off():
    told = Told()
    told.node("p-0", taints=LEAVING, unschedulable=True)
    left = plan(told, msgspec.structs.replace(BEFORE, closed=("p-0",)))
    assert (left.remove, left.close, [one.name for one in left.reopen]) == ((), (), ["p-0"])


def test_no_more_pods_are_asked_about_at_once_than_a_message_holds_and_nodes_with_few_come_first():
    told = Told()
    for node, pods in (("a", MOST_PODS - 10), ("b", 20), ("c", 5)):
        told.node(node)
        held = tuple(Allocation(pod_uid=f"{node}{n}", namespace="ns", name=f"{node}{n}", pool="p") for n in range(pods))
        record = NodeRecord(node=node, txn="t", allocations=held, changes=())
        told.pools.on_ledger(told.record(subjects.ledger_node(node), record))
    found = told.pools.lightly_used("p", 40)
    assert {one.pod_uid[0] for one in found} == {"b", "c"}
    assert len(found) == 25
    request = GpuRequest(pool="p", count=8, tflops_milli=10**6, vram_bytes=10**12, models=("A100-SXM4-80GB",) * 3)
    query = Emptiable(pool="p", threshold=40, requests={f"{n:036}": request for n in range(MOST_PODS)})
    assert len(msgspec.json.encode(query)) < 2**20


# --- claims whose node shows no GPUs ---


def waits(told: Told, reason: str = "PoolEmpty", name: str = "a", **more) -> None:
    request = GpuRequest(pool="p", tflops_milli=65_000, vram_bytes=16 * GIB, **more)
    one = Waiting(
        state_seq=1, ledger_seq=1, namespace="ns", name=name, uid=name, request=request, reason=reason,
        since=NOW - timedelta(minutes=2),
    )  # fmt: skip
    told.state(("waiting", "ns", name), one)


def look(told: Told, before: PoolCapacity, claims: Found, now: datetime = NOW):
    view = told.pools.view("p", before, claims, (OFFER,), now)
    made = plan_capacity(view, now)
    return made, noted(view, made, before, claims, told.pools.came(before, claims))


def test_a_node_that_has_come_counts_as_coming_until_its_gpus_are_known_and_is_given_back_when_they_never_are():
    told, claims = Told(), found(msgspec.structs.replace(CLAIM, made_at=NOW))
    waits(told)
    told.state(("node", "p-0"), Node(name="p-0", pool="p", ready=True))
    before, now = PoolCapacity(pool="p", claims={"p-0": NOW}), NOW
    while now - NOW < CLAIM_WITHIN:
        made, before = look(told, before, claims, now)
        assert (made.orders, made.give_up, before.coming.gpus) == ((), (), 2)
        now += timedelta(minutes=1)
    made, late = look(told, before, claims, now)
    assert [one.name for one in made.give_up] == ["p-0"] == list(late.given_up)
    assert [(one.offer, one.times) for one in late.failures] == [(OFFER.key, 1)]
    told.node("p-0")  # its agent speaks at last
    _, shown = look(told, late, claims, now)
    assert (shown.given_up, shown.bare_since, shown.total.gpus) == ((), {}, 2)


def test_a_claim_whose_node_came_and_vanished_is_given_up_in_the_end():
    told, claims = Told(), found(CLAIM)
    came = msgspec.structs.replace(BEFORE, came=("p-0",))
    made, before = look(told, came, claims)
    assert (made.give_up, before.bare_since) == ((), {"p-0": NOW})
    made, _ = look(told, before, claims, NOW + CLAIM_WITHIN)
    assert [one.name for one in made.give_up] == ["p-0"]


def test_an_operators_node_counts_whatever_it_is_called_and_one_whose_claim_is_gone_does_not():
    told = Told()
    told.node("p-0")
    (own,) = told.pools.view("p", PoolCapacity(pool="p"), found(), (OFFER,), NOW).machines
    assert not own.ending
    _, before = look(told, BEFORE, found())  # its claim was there at the last look
    assert before.ended == ("p-0",)
    (left,) = told.pools.view("p", before, found(), (OFFER,), NOW).machines
    assert left.ending


# --- nodes that we have closed ---

CLOSED = msgspec.structs.replace(BEFORE, closed=("p-0",))


def test_a_closed_node_is_opened_to_pods_that_only_our_taint_keeps_off_it():
    other = (Taint(key="theirs", effect="NoSchedule"),)
    for taints, opened in ((LEAVING, ["p-0"]), (LEAVING + other, [])):
        told = Told()
        waits(told, "TaintNotTolerated")
        told.node("p-0", taints=taints)
        made, after = look(told, CLOSED, found(CLAIM))
        assert ([one.name for one in made.reopen], made.orders) == (opened, ())
        assert ("p-0" in after.idle_since) != bool(opened)
    told = Told()
    waits(told)
    told.node("p-0", taints=LEAVING)
    view = told.pools.view("p", CLOSED, found(CLAIM), (), NOW)  # no offer, so nothing can be ordered
    assert [one.name for one in plan_capacity(view, NOW).reopen] == ["p-0"]


def test_a_taint_of_ours_that_no_record_tells_of_is_taken_over_and_the_node_closed_once_more_before_it_goes():
    told = Told()
    told.node("p-0", taints=LEAVING)
    made, after = look(told, BEFORE, found(CLAIM))
    assert ([one.name for one in made.close], made.remove, after.closed) == (["p-0"], (), ("p-0",))
    waits(told)
    made, after = look(told, BEFORE, found(CLAIM))
    assert ([one.name for one in made.reopen], made.close, after.closed) == (["p-0"], (), ())
