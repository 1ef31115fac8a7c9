"""Verifies with several processors: no allocator knew another's mind, so each process follows some of them.

What is found is the same however many processes there are.
"""

import asyncio
import contextlib
import gc
import heapq
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Final

import msgspec

from bus import codec
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.follower import Record
from bus.security import Security
from deploy.cli.connect import run
from deploy.replay.verdict import Part, Verdict, together
from deploy.replay.verify import Ends, Share, Verifier, last_turns
from schemas.journal import Turn

WORTH: Final = 2000
"""Decisions that a process must have to follow for it to be worth having one more."""

MOST: Final = 8
"""Processes unless more are asked for: few logs have more allocators that decided much."""

_CHECKS: Final = 0.15
"""What looking at the rules of the ledger costs, in parts of what following all allocators does."""


class Order(msgspec.Struct):
    """What a process is to do."""

    servers: tuple[str, ...]
    security: Security
    ends: Ends
    first: int
    last: int | None
    share: Share


class Helper:
    """A process that waits for an order, has it done, and ends.

    It is made before there is an event loop, as a copy of this process with everything loaded: that takes milliseconds, and
    loading takes as long as verifying some thousand decisions.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process: ForkProcess = context.Process(target=_obey, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    async def verify(self, order: Order) -> Part:
        """Have a part of the log verified.

        Raises:
            BusError: The process could not read it, or ended early.
        """
        self._connection.send(order)
        try:
            found = await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError):
            raise BusError("a process that verified a part of the log ended early: try again with --jobs 1") from None
        if isinstance(found, BusError):
            raise found
        assert isinstance(found, Part)  # noqa: S101
        return found

    def end(self) -> None:
        """End it, whatever it does."""
        if self._connection.closed:
            return
        self._process.kill()
        self._process.join()
        self._connection.close()


@contextlib.contextmanager
def helpers(count: int) -> Iterator[list[Helper]]:
    """Have processes stand by, which end with the block. There is to be no event loop yet.

    There are none where processes cannot be copied, or where other threads run: a copy has none of them, and maybe their locks.
    """
    made: list[Helper] = []
    try:
        if threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods():
            made += [Helper() for _ in range(count)]
        yield made
    finally:
        for helper in made:
            helper.end()


def processors() -> int:
    """Return how many processors this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shared_out(decisions: Mapping[str, int], jobs: int) -> list[Share]:
    """Share allocators out so that all shares take about as long; ``decisions`` is how many each has made.

    The first share looks at the ledger's rules as well. There are as many as are worth it, at least one and at most ``jobs``.
    """
    whole = sum(decisions.values())
    count = max(min(jobs, len(decisions), whole // WORTH), 1)
    mine: list[set[str]] = [set() for _ in range(count)]
    loads = [(whole * _CHECKS if place == 0 else 0.0, place) for place in range(count)]
    heapq.heapify(loads)
    for name in sorted(decisions, key=lambda name: (-decisions[name], name)):
        load, place = heapq.heappop(loads)
        mine[place].add(name)
        heapq.heappush(loads, (load + decisions[name], place))
    return [Share(frozenset(names), place == 0) for place, names in enumerate(mine)]


async def verify(bus: Bus, first: int = 0, last: int | None = None, *, crew: Sequence[Helper] = ()) -> Verdict:
    """Return what becomes of all decisions on record when they are thought again; see :class:`deploy.replay.verify.Verifier`.

    Args:
        bus: The connection.
        first: Compare only decisions that had read the ledger at least up to this sequence.
        last: And at most up to this one; None for no bound.
        crew: Processes to share the work with.

    Raises:
        BusError: A stream cannot be read, or one of the other processes ended early.
    """
    ends = await Ends.now(bus)
    ours, *others = shared_out(_decided(await last_turns(bus)), 1 + len(crew))
    if not others:
        return together([await Verifier(bus, ends, first, last).run()])
    orders = [Order(bus.servers, bus.security, ends, first, last, share) for share in others]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(Verifier(bus, ends, first, last, share=ours).run())]
            tasks += [group.create_task(helper.verify(order)) for helper, order in zip(crew, orders, strict=False)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return together([task.result() for task in tasks])


def _decided(turns: Mapping[str, Record]) -> dict[str, int]:
    """Return about how many decisions each allocator has made, by its last turn; one that cannot be read says nothing."""
    found = dict.fromkeys(turns, 0)
    for name, record in turns.items():
        with contextlib.suppress(UndecodableError):
            found[name] = codec.decode_as(Turn, record.payload).data.decided
    return found


def _obey(connection: Connection) -> None:
    """Be a helper, unless whoever made it is gone before there is an order."""
    os.setsid()  # Ctrl-C is for whoever made us
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101
    if connection not in multiprocessing.connection.wait([connection, parent.sentinel]):
        return
    try:
        order: Order = connection.recv()
    except EOFError:
        return
    collect_seldom()
    try:
        connection.send(run(_verify_part(order, parent.sentinel)))
    except BusError as error:
        connection.send(error)


async def _verify_part(order: Order, parent: int) -> Part:
    asyncio.get_running_loop().add_reader(parent, os._exit, 1)  # nobody is left to hear of it
    async with await Bus.connect(order.servers, name="gpubus-replay", security=order.security) as bus:
        return await Verifier(bus, order.ends, order.first, order.last, share=order.share).run()


def collect_seldom() -> None:
    """What is loaded stays and what comes dies young, so looking through all of it now and then is in vain."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
