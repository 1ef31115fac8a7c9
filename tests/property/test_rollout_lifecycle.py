"""Any order of events, orders of people and troubles: never more than a batch, nobody twice, and it comes to an end."""

import contextlib
import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.updater import orders
from schemas.rollout import Template, UpdatePolicy
from tests.unit.updater.world import LAST, NEW, NEWER, OLD, POLICY, World

ORDERS = {"pause": orders.pause, "resume": orders.resume, "abort": orders.abort, "rollback": orders.rollback}
WORDS = (
    "new", "newer", "join", "leave", "block", "free", "crash", "heal", "alert", "quiet", "gone", "back", "resize", "part", *ORDERS
)  # fmt: skip
EVENTS = st.lists(st.tuples(st.sampled_from(["step", *WORDS]) | st.just("step"), st.integers(0, 19)), max_size=40)


def heal(world: World) -> None:
    world.crashing.clear()
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

    def __init__(self, count: int, policy: UpdatePolicy) -> None:
        super().__init__(count, policy=policy)
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


PLAYS = {
    "step": lambda world, _: world.step(),
    "new": lambda world, _: want(world, NEW),
    "newer": lambda world, _: want(world, NEWER),
    "gone": lambda world, _: take_away(world),
    "back": lambda world, _: setattr(world, "spec", world.spec or world.away),
    "resize": lambda world, name: resize(world, 5 * int(name[1:]) + 1),
    "part": in_part,
    "join": lambda world, _: world.add(f"j{world.made}", OLD),
    "leave": lambda world, name: world.members.pop(name, None),
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
@given(st.integers(1, 20), st.integers(1, 100), st.booleans(), EVENTS)
def test_whatever_happens(count: int, percentage: int, canary: bool, events: list[tuple[str, int]]) -> None:
    world = Play(count, msgspec.structs.replace(POLICY, batch_percentage=percentage, canary=canary))
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
