"""What a pool's status says of a rollout, and that the document for operators has every word of it."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

import schemas
from bus.errors import UndecodableError
from bus.follower import Record
from bus.subjects import ledger_rollout, state
from consumers.updater.status import pool_status
from consumers.updater.view import Key, View
from schemas.rollout import Phase, Reason
from schemas.update_policy import _KEYS
from tests.unit.updater.world import NEW, World

KEY: Key = ("p", "hypervisor")
DOCUMENT = Path(schemas.__file__).parent / "ROLLOUTS.md"


def shown(world: World, refused: str = "") -> tuple[str, str, str]:
    (condition,) = pool_status(world.record, 0, 10, refused=refused)["status"]["conditions"]
    return condition["status"], condition["reason"], condition["message"]


def test_every_phase_reason_and_key_of_the_policy_is_explained_to_operators() -> None:
    text = DOCUMENT.read_text()
    words = {*get_args(Phase), *get_args(Reason), *_KEYS} - {""}
    assert {word for word in words if f"`{word}" not in text} == set()


def test_a_policy_that_is_refused_is_said_even_while_all_is_in_sync() -> None:
    world = World()
    assert shown(world) == ("True", "Updated", "")
    refused = "maintenanceWindow.includes[0] is 'x': write a cron expression"
    status, reason, message = shown(world, refused)
    assert (status, reason) == ("True", "PolicyRefused")
    assert message == f"the update policy cannot be followed, so nothing is updated: {refused}"
    world.want(NEW, auto_update=False, refused=refused)
    world.settle()
    assert shown(world, refused)[1:] == ("PolicyRefused", message)  # once, not twice


def test_what_cannot_be_read_is_said_before_all_else_with_what_mends_it() -> None:
    view = View()
    assert view.stuck(KEY) == ""
    for subject in (state("member", *KEY, "n1"), ledger_rollout(*KEY)):
        handler = view.on_ledger if "ledger" in subject else view.on_state
        with pytest.raises(UndecodableError):
            handler(Record(subject, 1, b"{half"))
    stuck = view.stuck(KEY)
    assert stuck == (
        "its record cannot be read: nothing is updated until `gpubus rollout reset p hypervisor` begins it anew"
    )
    view.on_ledger(Record(ledger_rollout(*KEY), 2, b"", deleted=True))
    assert view.stuck(KEY).startswith(f"nothing is updated while {state('member', *KEY, 'n1')} cannot be read")
    (condition,) = pool_status(World().record, 10, 10, stuck=stuck)["status"]["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == ("Unknown", "Unreadable", stuck)


@pytest.mark.parametrize("reason", ["AlertsFiring", "PoolGone"])
def test_what_is_held_back_says_by_what(reason: Reason) -> None:
    world = World()
    world.record = msgspec.structs.replace(world.record, phase="planned", reason=reason, message="m")
    assert shown(world) == ("False", reason, "m")
