"""Counters of decisions, and what was lost: kept on the bus, so that they only grow."""

import logging
import time
from collections.abc import Collection
from datetime import UTC, datetime

import msgspec

from bus import history, records
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import ConflictError, UndecodableError
from bus.follower import Record
from bus.streams import DECISION, STATE, USAGE, stream_info
from consumers.metrics.progress import COUNTERS
from consumers.metrics.tables import SYSTEM_LOG, SYSTEM_METRICS, Row
from consumers.recorder.topology import verdict
from consumers.recorder.view import View
from schemas.decision import Decision
from schemas.event import Event, utc
from schemas.record import PoolCounters, RecorderCounters

log = logging.getLogger("gpubus.recorder")


class _Delivered(msgspec.Struct):
    stream_seq: int = 0


class _ConsumerInfo(msgspec.Struct):
    delivered: _Delivered


class Counters:
    """Reads decisions behind those that are counted, and replaces the counters by compare-and-set."""

    def __init__(self, bus: Bus, source: str, durable: str) -> None:
        self._bus = bus
        self._source = source
        self._durable = durable
        self.lost_usage = 0

    async def count(self, slot: int, view: View) -> tuple[int, RecorderCounters, list[Row]] | None:
        """Count what was decided since the last snapshot.

        Returns the sequence of the counters that this replaces, the new ones, and the decisions as rows of the log; None when
        somebody counted this snapshot or a later one. Nothing is written: :meth:`commit` does that, once all is stored.

        Args:
            slot: The snapshot.
            view: What is known of pods, pools and nodes.

        Raises:
            BusError: The bus did not answer.
        """
        seq, before = await self._read()
        if before is not None and before.slot >= slot:
            return None
        before = before or await self._beginning()
        pools: dict[str, PoolCounters] = dict(before.pools)
        lines: list[Row] = []

        def count(record: Record) -> None:
            if record.deleted:
                return
            try:
                decision = decode_as(Decision, record.payload).data
            except UndecodableError:
                return
            if decision.outcome in ("allocated", "unschedulable") and decision.way != "resize":  # it stood there before
                pools[decision.pool] = _counted(pools.get(decision.pool, PoolCounters()), decision, view)
            lines.append(_log_row(record, decision))

        reached = await history.read(self._bus, DECISION, ["gpubus.decision.>"], count, since=before.decisions + 1)
        for pool, capacity in view.capacities.items():
            pools[pool] = _resized(pools.get(pool, PoolCounters()), capacity.claims)
        lost, through = await self._lost(before)
        after = msgspec.structs.replace(
            before,
            decisions=max(reached, before.decisions),
            slot=slot,
            pools=pools,
            lost_usage=lost,
            lost_through=through,
        )
        return seq, after, lines

    async def note_loss(self) -> None:
        """Count what the stream has dropped that no recorder was given. To be called before more is taken after an outage.

        Raises:
            BusError: The bus did not answer.
        """
        seq, known = await self._read()
        before = known or await self._beginning()
        lost, through = await self._lost(before)
        self.lost_usage = lost
        if lost != before.lost_usage:
            log.warning("%d usage messages were dropped before they could be recorded", lost - before.lost_usage)
        if lost != before.lost_usage or known is None:
            await self.commit(seq, msgspec.structs.replace(before, lost_usage=lost, lost_through=through))

    async def note_refusal(self, at: int) -> None:
        """Say that the metrics store refused usage at an instant, in nanoseconds since the epoch: it is not stored.

        Raises:
            BusError: The bus did not answer.
        """
        while True:
            seq, known = await self._read()
            before = known or await self._beginning()
            if at <= before.refused_at or await self.commit(seq, msgspec.structs.replace(before, refused_at=at)):
                return

    async def _beginning(self) -> RecorderCounters:
        """Counting begins now: history may be long."""
        return RecorderCounters(decisions=(await stream_info(self._bus, DECISION)).state.last_seq)

    async def commit(self, seq: int, after: RecorderCounters) -> bool:
        """Replace the counters at ``seq``, unless somebody else did; return whether that was done.

        Raises:
            BusError: The bus did not answer.
        """
        event = Event(
            id=f"recorder:{after.slot}",
            source=self._source,
            type="gpubus.recorder.v1",
            subject="counters",
            time=utc(time.time()),
            data=after,
        )
        try:
            await records.replace(self._bus, COUNTERS, event, expected=seq)
        except ConflictError:
            return False
        self.lost_usage = after.lost_usage
        return True

    async def _read(self) -> tuple[int, RecorderCounters | None]:
        stored = await records.latest(self._bus, STATE, COUNTERS)
        try:
            return stored.seq, decode_as(RecorderCounters, stored.payload).data if stored.payload else None
        except UndecodableError:
            return stored.seq, None

    async def _lost(self, before: RecorderCounters) -> tuple[int, int]:
        """Return how many usage messages are gone that nobody was given, and up to where that is counted."""
        first = (await stream_info(self._bus, USAGE)).state.first_seq
        info = await self._bus.api(f"CONSUMER.INFO.{USAGE}.{self._durable}")
        given = msgspec.json.decode(info, type=_ConsumerInfo).delivered.stream_seq
        through = max(given, before.lost_through)
        gone = max(first - 1 - through, 0)
        return before.lost_usage + gone, through + gone


def _counted(pool: PoolCounters, decision: Decision, view: View) -> PoolCounters:
    near, unknown = verdict(decision, view.topology(decision), view.inventories.get(decision.node))
    return msgspec.structs.replace(
        pool,
        allocated=pool.allocated + (decision.outcome == "allocated"),
        failed=pool.failed + (decision.outcome == "unschedulable"),
        near=pool.near + (near == "satisfied"),
        far=pool.far + (near == "unsatisfied"),
        unknown=pool.unknown + unknown,
    )


def _resized(pool: PoolCounters, claims: Collection[str]) -> PoolCounters:
    """Count the claims that have come and gone since the last snapshot."""
    known = pool.claims if pool.claims is not None else claims
    return msgspec.structs.replace(
        pool,
        grown=pool.grown + len(set(claims) - set(known)),
        shrunk=pool.shrunk + len(set(known) - set(claims)),
        claims=tuple(sorted(claims)),
    )


def _log_row(record: Record, decision: Decision) -> Row:
    at = record.time_ns // 1_000_000
    message = decision.message or decision.reason or (f"on {decision.node}" if decision.node else "")
    return SYSTEM_LOG.row(
        at,
        component="allocator",
        namespace=decision.namespace,
        pod=decision.name,
        stream=decision.outcome,
        message=message,
        timestamp=datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds"),
    )


def system_rows(view: View, counters: RecorderCounters, *, ts_ms: int) -> list[Row]:
    """Return a row per pool.

    The search for near GPUs looks at every set, so it is never cut short.
    """
    nodes: dict[str, int] = {}
    workers: dict[str, int] = {}
    for name in view.inventories:
        pool = view.pool_of(name)
        nodes[pool] = nodes.get(pool, 0) + 1
        held = view.held.get(name, {}).values()
        workers[pool] = workers.get(pool, 0) + sum(1 for allocation in held if allocation.gpus)
    none = PoolCounters()
    return [
        SYSTEM_METRICS.row(
            ts_ms,
            pool=pool,
            total_workers_cnt=workers.get(pool, 0),
            total_nodes_cnt=nodes.get(pool, 0),
            total_allocation_success_cnt=counters.pools.get(pool, none).allocated,
            total_allocation_fail_cnt=counters.pools.get(pool, none).failed,
            total_scale_up_cnt=counters.pools.get(pool, none).grown,
            total_scale_down_cnt=counters.pools.get(pool, none).shrunk,
            total_topo_satisfied_cnt=counters.pools.get(pool, none).near,
            total_topo_unsatisfied_cnt=counters.pools.get(pool, none).far,
            total_topo_fallback_cnt=counters.pools.get(pool, none).unknown,
            total_topo_search_degraded_cnt=0,
        )
        for pool in sorted(nodes.keys() | counters.pools.keys())
    ]
