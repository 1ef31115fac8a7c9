"""Pods that are to hold more or less, amid everything else that may happen to two or three allocators.

The machine of :mod:`tests.property.test_allocator_core`, driven by dice that have pods resized more often than chance would.
"""

import random
from collections import Counter

import pytest

from tests.property.test_allocator_core import NODES, QUOTAS, SHAPES, Allocators

STEPS = 150
SHARES = (100, 300, 500, 900)


def step(machine: Allocators, dice: random.Random) -> None:  # noqa: C901, PLR0912  one case for each kind of event
    """Have one thing happen."""
    world, act = machine.world, dice.random() < 0.6
    to, which = dice.randrange(6), dice.randrange(30)
    match dice.choices(range(13), (4, 12, 6, 8, 6, 6, 4, 3, 1, 1, 2, 1, 2))[0]:
        case 0:
            shape = dice.choice(["small", "small", "urgent", "whole", "protected", "alone", *SHAPES])
            machine.schedule_a_pod(shape=shape, namespace=dice.choice(["d", "q"]), to=to, act=act)
        case 1:
            machine.resize_a_pod(which=which, to=to, share=dice.choice(SHARES), act=act)
        case 2:
            machine.let_a_member_act(which=to)
        case 3 if world.wire:
            machine.let_a_commit_arrive(which=to, lost=dice.random() < 0.15)
        case 4 if machine.answered():
            machine.hear_an_answer(which=to, act=act)
        case 5:
            machine.hear_the_ledger(which=to, most=dice.randint(1, 6), act=act)
        case 6:
            machine.hear_the_state(which=to, most=dice.randint(1, 6), act=act)
        case 7 if machine.speaking():
            machine.publish_an_announcement(whose=to, which=which, acknowledge=act)
        case 8:
            machine.change_the_quota(quota=dice.choice(sorted(QUOTAS)))
        case 9:
            machine.cordon_a_node_or_lift_it(name=dice.choice(NODES))
        case 10 if alive := sorted(world.pods.keys() - world.gone):
            world.delete(dice.choice(alive))
        case 11 if not world.poisoned:
            machine.kill_a_member(which=to)
        case 12 if world.unsettled():
            machine.deliver_an_unacknowledged_command(which=which, to=to, catch_up=act, act=act)
    machine.nothing_is_given_twice()


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_whatever_happens_pods_hold_what_was_decided_and_decisions_come_out_the_same(start: int) -> None:
    ways: Counter[str] = Counter()
    for seed in range(start, start + 20):
        dice, machine = random.Random(seed), Allocators()
        machine.begin(members=dice.choice([2, 3]))
        for _ in range(STEPS):
            step(machine, dice)
        machine.teardown()
        for record in machine.world.ledger.records:
            ways["resized"] += record.payload.count(b'"way":"resize"')
    assert ways["resized"] > 20
