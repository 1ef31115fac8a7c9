"""Orders to a rollout: given against its record as it stands, again and again while the updater takes steps of its own."""

import asyncio
import getpass
import os
import random
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from deploy.cli.connect import open_bus
from deploy.cli.errors import NotFoundError
from deploy.cli.rollout_log import HINT, decoded

if TYPE_CHECKING:
    from bus.connection import Bus
    from bus.follower import Record
    from schemas.rollout import ComponentSpec, Member, Rollout

WITHIN_S: Final = 30.0
"""How long an order is given anew because the updater took a step meanwhile."""

_PAUSE_S: Final = (0.002, 0.1)

Key = tuple[str, str]
Change = Callable[["Rollout", datetime, str], "Rollout"]


async def give(key: Key, name: str, nats: list[str] | None) -> "Rollout":
    """Give the order of that name, and return the record that it made.

    Raises:
        NotFoundError: There is nothing to order, or the updater was faster all the time.
    """
    from consumers.updater import orders
    from consumers.updater.view import mend

    change: Change = getattr(orders, name)

    async def write(record: "Record", spec: "ComponentSpec | None") -> "Rollout":
        from schemas.rollout import Rollout

        known = decoded([record], Rollout)
        if not known:
            raise NotFoundError(f"{_name(key)} cannot be steered, as its record cannot be read: {mend(*key)}")
        if name == "resume" and spec is not None:
            orders.check_policy(known[0], spec.policy)
        return change(known[0], datetime.now(UTC), _whoami())

    async with open_bus(nats, None) as bus:
        return await _insist(bus, key, write)


async def begin_anew(key: Key, nats: list[str] | None) -> "Rollout":
    """Begin anew where the newest record cannot be read, and return the record that stands then.

    Raises:
        NotFoundError: It can be read, or nothing is known to begin with.
    """
    from bus.codec import decode_as
    from bus.errors import UndecodableError
    from bus.history import read
    from bus.streams import LEDGER
    from consumers.updater import orders
    from schemas.rollout import Rollout

    async def write(record: "Record", spec: "ComponentSpec | None") -> "Rollout":
        try:
            decode_as(Rollout, record.payload)
        except UndecodableError:
            past: list[Record] = []
            await read(bus, LEDGER, [record.subject], past.append)
            good = decoded([one for one in past if not one.deleted], Rollout)
            return orders.begin_anew(good[-1] if good else None, spec, datetime.now(UTC), _whoami())
        raise NotFoundError(f"the record of {_name(key)} can be read: there is nothing to begin anew")

    async with open_bus(nats, None) as bus:
        return await _insist(bus, key, write)


async def _insist(
    bus: "Bus", key: Key, write: Callable[["Record", "ComponentSpec | None"], Awaitable["Rollout"]]
) -> "Rollout":
    """Write over the newest record until nobody comes between; what pools want and what runs is read once, as it takes long."""
    from bus.errors import ConflictError
    from bus.follower import Record
    from bus.history import newest
    from bus.records import latest
    from bus.streams import LEDGER, STATE
    from bus.subjects import ledger_rollout, state
    from consumers.updater.orders import OrderRefusedError
    from schemas.rollout import ComponentSpec, Member

    subject = ledger_rollout(*key)
    specs = decoded((await newest(bus, STATE, [state("component", *key)]))[0], ComponentSpec)
    members = decoded((await newest(bus, STATE, [f"{state('member', *key)}.*"]))[0], Member)
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    pause, longest = _PAUSE_S
    while True:
        stored = await latest(bus, LEDGER, subject)
        if not stored.payload:
            raise NotFoundError(f"no rollout of {_name(key)} is known: {HINT}")
        try:
            ordered = await write(Record(subject, stored.seq, stored.payload), specs[0] if specs else None)
            return await _commit(bus, key, ordered, stored.seq, members)
        except OrderRefusedError as error:
            raise NotFoundError(str(error)) from error
        except ConflictError:
            if asyncio.get_running_loop().time() > deadline:
                text = f"{_name(key)} took a step each time that the order was given, for {WITHIN_S:.0f} s: try again"
                raise NotFoundError(text) from None
        await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  jitter
        pause = min(2 * pause, longest)


async def _commit(bus: "Bus", key: Key, ordered: "Rollout", seq: int, members: list["Member"]) -> "Rollout":
    import msgspec

    from bus import ledger
    from bus.codec import encode
    from bus.subjects import ledger_rollout
    from consumers.updater.progress import count
    from schemas.event import Event

    txn = f"order:{token_hex(8)}"
    updated, total = count(ordered, members)
    ordered = msgspec.structs.replace(ordered, txn=txn, updated=updated, total=total)
    event = Event(
        id=txn, source="/gpubus/cli", type="gpubus.rollout.v1", subject="/".join(key), time=ordered.changed_at, data=ordered
    )  # fmt: skip
    await ledger.commit(bus, ledger_rollout(*key), encode(event), txn=txn, expected=seq, timeout=10.0)
    return ordered


def _name(key: Key) -> str:
    return f"{key[1]} of pool {key[0]!r}"


def _whoami() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
