"""Any order of events, orders of people and troubles: never more than a batch, nobody twice, and it comes to an end.

Templates follow one another, some of them broken. The world that is played against counts who is down by our doing, over all of
them, and fails when one more is taken down than a batch may have.
"""

import contextlib
import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.updater import orders
from schemas.rollout import Component, Template, UpdatePolicy
from tests.unit.updater.world import LAST, NEW, NEWER, OLD, OTHER, POLICY, World

ORDERS = {"pause": orders.pause, "resume": orders.resume, "abort": orders.abort, "rollback": orders.rollback}
WORDS = (
    "want", "want", "break", "break", "join", "leave", "block", "free", "crash", "heal", "alert", "quiet", "gone", "back",
    "resize", "part", "stick", *ORDERS,
)  # fmt: skip
TEMPLATES = (OLD, NEW, NEWER, OTHER)
EVENTS = st.lists(st.tuples(st.sampled_from(["step", *WORDS]) | st.just("step"), st.integers(0, 19)), max_size=40)
FEW = ("step", "step", "want", "break", "block", "free", "resize", "stick", "heal", "rollback", "resume")
TROUBLES = st.lists(st.tuples(st.sampled_from(FEW), st.integers(0, 7)), min_size=8, max_size=40)
COMPONENT_NAMES = st.sampled_from(["hypervisor", "client"])


def heal(world: World) -> None:
    world.crashing.clear()
    world.broken.clear()
    world.stuck.clear()
    if world.component == "client" and world.record is not None:
        for name in world.ours - set(world.members):  # their owner makes them at last
            world.add(name, world.record.target)
    for sick in [m for m in world.members.values() if m.crash_looping]:
        world.members[sick.name] = msgspec.structs.replace(sick, crash_looping=False, ready=True)


def order(world: World, word: str) -> None:
    with contextlib.suppress(orders.OrderRefusedError):
        world.order(ORDERS[word])


class Play(World):
    """A world whose pool may be away, and whose batches may be resized.

    Attributes:
        away: What the pool wants, should it come back.
        most: The greatest percentage that a batch may have had.
    """

    def __init__(self, count: int, component: Component, policy: UpdatePolicy) -> None:
        super().__init__(count, component, policy)
        self.away = self.spec
        self.most = policy.batch_percentage


def want(world: Play, template: Template) -> None:
    if world.spec is not None:
        world.want(template)


def take_away(world: Play) -> None:
    world.away, world.spec = world.spec or world.away, None


def resize(world: Play, percentage: int) -> None:
    """A policy that is edited in mid-rollout holds from the next batch on."""
    world.most = max(world.most, percentage)
    if world.spec is not None:
        world.want(world.spec.template, batch_percentage=percentage)


def in_part(world: World, name: str) -> None:
    """Some pods of a worker are replaced, and no more for now."""
    world.parts[name] = 1


def join(world: World, _: str) -> None:
    """Of another owner: one that is scaled up makes good what it lacked."""
    owner = {"owner": f"apps/v1/ReplicaSet/{world.made}"} if world.component == "client" else {}
    world.add(f"j{world.made}", OLD, **owner)


def stick(world: World, name: str) -> None:
    """A client that its owner does not make again; a node stays a member whatever becomes of its agent."""
    if world.component == "client":
        world.stuck |= {one for one in world.members if one.rstrip("x") == name}


def leave(world: World, name: str) -> None:
    world.members.pop(name, None)
    world.ours.discard(name)


PLAYS = {
    "step": lambda world, _: world.step(),
    "want": lambda world, name: want(world, TEMPLATES[int(name[1:]) % 4]),
    "break": lambda world, name: world.broken.add(TEMPLATES[int(name[1:]) % 4].hash),
    "gone": lambda world, _: take_away(world),
    "back": lambda world, _: setattr(world, "spec", world.spec or world.away),
    "resize": lambda world, name: resize(world, 5 * int(name[1:]) + 1),
    "part": in_part,
    "stick": stick,
    "join": join,
    "leave": leave,
    "block": lambda world, name: world.blocked.update({name: "budget"}),
    "free": lambda world, _: (world.blocked.clear(), world.parts.clear()),
    "crash": lambda world, name: world.crashing.add(name),
    "heal": lambda world, _: heal(world),
    "alert": lambda world, _: world.alert("Alert"),
    "quiet": lambda world, _: setattr(world, "alerts", ()),
    **{word: lambda world, _, word=word: order(world, word) for word in ORDERS},
}


def play(world: Play, event: str, which: int) -> None:
    PLAYS[event](world, f"n{which:02}")
    world.settle()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 20), COMPONENT_NAMES, st.integers(1, 100), st.booleans(), EVENTS)
def test_whatever_happens(
    count: int, component: Component, percentage: int, canary: bool, events: list[tuple[str, int]]
) -> None:
    check(count, component, percentage, canary=canary, events=events)


@settings(deadline=None, max_examples=100)
@given(st.integers(4, 8), COMPONENT_NAMES, st.sampled_from([20, 50, 80]), st.booleans(), TROUBLES)
def test_templates_that_follow_one_another_in_mid_batch_take_no_more_down_than_a_batch(
    count: int, component: Component, percentage: int, canary: bool, events: list[tuple[str, int]]
) -> None:
    check(count, component, percentage, canary=canary, events=events)


def check(count: int, component: Component, percentage: int, *, canary: bool, events: list[tuple[str, int]]) -> None:
    """Play the events, and then let all troubles end; the world checks who is taken down."""
    world = Play(count, component, msgspec.structs.replace(POLICY, batch_percentage=percentage, canary=canary))
    world.want(NEW)
    world.settle()
    for event, which in events:
        play(world, event, which)
    for record in world.history:
        assert len(record.batch) <= max(math.ceil(world.most * record.total / 100), 1) or record.step != "batch"
        assert len(record.batch) <= 1 or record.phase != "canary"
    assert len(set(world.touches)) == len(world.touches)
    # When all troubles are over and people are content, it ends with everybody on what the record says.
    for event in ("back", "free", "heal", "quiet", "step"):
        play(world, event, 0)
    for _ in range(5):
        world.run()
        if world.phase in ("synced", "rolled-back"):
            break
        world.want(LAST) if world.phase == "aborted" else world.order(orders.resume)
        world.settle()
    assert world.phase in ("synced", "rolled-back")
    assert world.on(world.record.target) == set(world.members)
