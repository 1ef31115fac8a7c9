"""What the log says of rollouts, for `gpubus rollout`. A record that cannot be read is named, and the others are shown."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from deploy.cli.connect import open_bus
from deploy.cli.output import warn

if TYPE_CHECKING:
    from bus.follower import Record
    from consumers.updater.view import Key, View
    from schemas.rollout import Rollout

T = TypeVar("T", bound="msgspec.Struct")

HINT: Final = "`gpubus rollout status` lists them"


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout whose newest record cannot be read: nothing is updated until somebody begins it anew."""

    pool: str
    component: str
    phase: Literal["unreadable"] = "unreadable"
    sequence: int
    changed_at: datetime
    message: str


async def newest_rollouts(nats: list[str] | None, store: Path | None) -> "list[Rollout | Unreadable]":
    """Return every rollout, with members counted as they are and with what else people should know of its pool.

    What can be read is up to the same fold that the updater goes by.
    """
    from bus.errors import UndecodableError
    from bus.history import newest
    from bus.streams import LEDGER, STATE
    from consumers.updater.view import LEDGER_FILTERS, STATE_FILTERS, View

    async with open_bus(nats, store) as bus:
        records, _ = await newest(bus, LEDGER, LEDGER_FILTERS)
        told, _ = await newest(bus, STATE, STATE_FILTERS)
    view = View()
    found: list[Rollout | Unreadable] = []
    for record in told:
        try:
            view.on_state(record)
        except UndecodableError as error:
            _name(record, error.reason)
    for record in records:
        try:
            found.append(_shown(view, view.on_ledger(record)))
        except UndecodableError as error:
            _name(record, error.reason)
            if (one := _unreadable(record, error.reason)) is not None:
                found.append(one)
    return sorted(found, key=lambda one: (one.pool, one.component))


def _shown(view: "View", key: "Key") -> "Rollout":
    from consumers.updater.progress import count

    record, _ = view.record(key)
    assert record is not None  # noqa: S101  the view has just taken it in
    spec, stuck = view.spec(key), view.stuck(key)
    updated, total = count(record, view.members(key))
    notes = [record.message]
    if stuck:
        notes.append(stuck)
    elif spec is None:
        notes = [f"the pool is gone, or configures no {record.component}s"]
    elif (refused := spec.policy.refused) and refused not in record.message:
        notes.append(f"the update policy cannot be followed: {refused}")
    return msgspec.structs.replace(record, updated=updated, total=total, message="; ".join(filter(None, notes)))


def _unreadable(record: "Record", reason: str) -> Unreadable | None:
    from bus.errors import UndecodableError
    from bus.subjects import names
    from consumers.updater.view import key_of, mend
    from schemas.event import utc

    try:
        _, _, pool, component = names(record.subject)
        key_of(pool, component)
    except (ValueError, UndecodableError):  # it is about no component of ours
        return None
    text = f"the record at {record.seq} cannot be read ({reason}): {mend(pool, component)}"
    return Unreadable(
        pool=pool, component=component, sequence=record.seq, changed_at=utc(record.time_ns / 1e9), message=text
    )


async def every_step(
    pool: str, component: str, nats: list[str] | None, store: Path | None
) -> tuple[list["Rollout"], int]:
    """Return every readable revision, oldest first, and how many cannot be read; those are named."""
    from bus.history import read
    from bus.streams import LEDGER
    from bus.subjects import ledger_rollout
    from schemas.rollout import Rollout

    records: list[Record] = []
    async with open_bus(nats, store) as bus:
        await read(bus, LEDGER, [ledger_rollout(pool, component)], records.append)
    kept = [record for record in records if not record.deleted]
    found = decoded(kept, Rollout)
    return found, len(kept) - len(found)


def decoded(records: Iterable["Record"], struct: type[T]) -> list[T]:
    """Return the records that can be read; the others are named as a warning."""
    from bus.codec import decode_as
    from bus.errors import UndecodableError

    good: list[T] = []
    for record in records:
        try:
            good.append(decode_as(struct, record.payload).data)
        except UndecodableError as error:
            _name(record, error.reason)
    return good


def _name(record: "Record", reason: str) -> None:
    warn(f"the record {record.subject} at {record.seq} cannot be read: {reason}; see `gpubus dead list`")
