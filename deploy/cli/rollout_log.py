"""What the log says of rollouts, for `gpubus rollout`. A record that cannot be read is named, and the others are shown."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from deploy.cli.connect import open_bus
from deploy.cli.output import warn

if TYPE_CHECKING:
    import msgspec

    from bus.follower import Record
    from schemas.rollout import Rollout

T = TypeVar("T", bound="msgspec.Struct")


async def newest_rollouts(nats: list[str] | None, store: Path | None) -> list["Rollout"]:
    """Return every rollout, with members counted as they are and with what else people should know of its pool."""
    import msgspec

    from bus.history import newest
    from bus.streams import LEDGER, STATE
    from bus.subjects import state
    from consumers.updater.progress import count
    from schemas.rollout import ComponentSpec, Member, Rollout

    async with open_bus(nats, store) as bus:
        records, _ = await newest(bus, LEDGER, ["gpubus.ledger.rollout.>"])
        runs, _ = await newest(bus, STATE, ["gpubus.state.member.>"])
        wanted, _ = await newest(bus, STATE, ["gpubus.state.component.>"])
    members: defaultdict[tuple[str, str], list[Member]] = defaultdict(list)
    for one in decoded(runs, Member):
        members[one.pool, one.component].append(one)
    specs = {(spec.pool, spec.component): spec for spec in decoded(wanted, ComponentSpec)}
    unreadable = {record.subject for record in wanted} - {state("component", *key) for key in specs}
    found = []
    for record in decoded(records, Rollout):
        key = (record.pool, record.component)
        updated, total = count(record, members[key])
        message = record.message
        if key not in specs and state("component", *key) not in unreadable:
            message = f"the pool is gone, or configures no {record.component}s"
        elif key in specs and (refused := specs[key].policy.refused) and refused not in message:
            message = "; ".join(filter(None, (message, f"the update policy cannot be followed: {refused}")))
        found.append(msgspec.structs.replace(record, updated=updated, total=total, message=message))
    return sorted(found, key=lambda record: (record.pool, record.component))


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
            warn(f"the record {record.subject} at {record.seq} cannot be read: {error.reason}; see `gpubus dead list`")
    return good
