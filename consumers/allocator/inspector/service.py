"""The inspector's shell: holds the same view as allocators do and answers questions about it, any number side by side.

A question costs nothing but time here: allocators and the ledger never notice.
"""

import asyncio
from typing import Final

import msgspec

from bus import rpc
from bus.connection import Bus
from bus.errors import CallError
from bus.follower import Follower
from bus.rpc import Service
from bus.streams import LEDGER, STATE
from consumers.allocator.cluster import STATE_FILTERS
from consumers.allocator.defrag import plan_defrag
from consumers.allocator.inspector import clear, compatible, listings
from consumers.allocator.inspector.view import LEDGER_FILTERS, View
from schemas.admission import Admit, Understood
from schemas.inspection import Allocations, Answer, Dump, Emptiable, Nodes, Pools, Problem, Query, Simulate
from schemas.pod import Schedule

OK: Final = 200
UNPROCESSABLE: Final = 422
UNAVAILABLE: Final = 503

UNDERSTAND_TIMEOUT_S: Final = 2.0

SIMULATED: Final = "simulated"
"""UID of a pod that does not exist: no UID of Kubernetes is like it."""

_json = msgspec.json.Encoder()


class InspectorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and the sequences up to which the streams have been read."""

    answered: int
    failed: int
    unreadable: int
    state: int
    ledger: int


class Inspector:
    """One inspector process.

    Args:
        bus: The connection; the streams must exist.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.view = View()
        self._state = Follower(bus, STATE, STATE_FILTERS, self.view.on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self.view.on_ledger, recreated=self.view.recreated)
        self._service = Service(bus, "inspect", Query, self._answer, concurrency=8)

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Load the cluster, then answer until ``stop`` is set."""
        await self._state.start()
        await self._ledger.start()
        await self._service.start()
        if ready is not None:
            ready.set()
        await stop.wait()
        await self._service.stop()
        await self._state.stop()
        await self._ledger.stop()

    async def _answer(self, query: Query) -> Answer:
        match query:
            case Simulate():
                return await self._simulate(query)
            case Dump():
                found: object = compatible.allocation_state(self.view)
            case Pools():
                found = listings.pools(self.view)
            case Nodes():
                found = listings.nodes(self.view, query)
            case Emptiable():
                found = plan_defrag(
                    self.view.snapshot, query.requests, query.pool, threshold=query.threshold, fixed=query.fixed,
                    skip=frozenset(query.skip),
                )  # fmt: skip
            case Allocations():
                found = listings.allocations(self.view, query)
        return Answer(code=OK, body=_encoded(found))

    async def _simulate(self, query: Simulate) -> Answer:
        asked = Admit(uid=SIMULATED, namespace=query.namespace, pod=query.pod, dry_run=True)
        try:
            understood = await rpc.call(self._bus, "mutate.understand", asked, Understood, timeout=UNDERSTAND_TIMEOUT_S)
        except CallError as error:
            text = f"nobody can say what admission would make of the pod ({error}): try again"
            return Answer(code=UNAVAILABLE, body=_encoded(Problem(error=text)))
        if understood.refusal:
            return _refusal(understood.refusal, understood.field, understood.value, understood.fix)
        if understood.request is None:
            fix = "add tensor-fusion.ai annotations or nvidia.com resources"
            return _refusal(f"the pod asks for no GPU of ours: {fix}", "metadata.annotations", "", fix)
        pod = Schedule(namespace=query.namespace, name=query.name, uid=SIMULATED, request=understood.request)
        say = clear.simulate if query.clear else compatible.simulate
        return Answer(code=OK, body=_encoded(say(self.view, pod, understood.warnings)))

    def statistics(self) -> InspectorStatistics:
        """Return the counters of this inspector."""
        service, cluster = self._service.statistics(), self.view.cluster
        return InspectorStatistics(
            answered=service.answered,
            failed=service.failed,
            unreadable=self.view.unreadable,
            state=cluster.state_seq,
            ledger=cluster.ledger_seq,
        )


def _refusal(error: str, field: str, value: str, fix: str) -> Answer:
    return Answer(code=UNPROCESSABLE, body=_encoded(Problem(error=error, field=field, value=value, fix=fix)))


def _encoded(found: object) -> msgspec.Raw:
    return msgspec.Raw(_json.encode(found))
