"""The shell around defragmentation: asks, evicts, and writes down before it does anything.

A look does what the record says is to be done, whoever wrote it: closing a node twice or evicting a pod that has gone changes
nothing. Evictions go through the Eviction API with the pod's UID, so disruption budgets hold and no other pod of its name goes.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus import records, rpc, subjects
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import ConflictError, UndecodableError
from bus.kube.client import Client, resource_path
from bus.kube.eviction import evict
from bus.streams import LEDGER, STATE
from consumers.scaler.campaign import Schedule, chosen, due, emptying, ended, out_of_time, reopens, schedule_of, skipped
from consumers.scaler.closing import close_node
from consumers.scaler.pools import KEEP_LABELS, SOURCE_LABEL, Pools
from schemas.defrag import Campaign, Defrag
from schemas.dialects.text import RequestError
from schemas.event import Event
from schemas.inspection import Answer, Emptiable
from schemas.kube.core import KubePod
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Pod

log = logging.getLogger("gpubus.scaler")

KIND: Final = "defrag"
ASK_TIMEOUT_S: Final = 20.0
OK: Final = 200
_EVER: Final = datetime.min.replace(tzinfo=UTC)


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


_pods = msgspec.json.Decoder(_Pods)


class Defragmenter:
    """Carries campaigns out.

    Args:
        bus: The connection; the streams must exist, and an inspector must answer.
        client: The API server.
        pools: What is known of pools.
        source: Who speaks, for events.
        clock: Seconds since the epoch.
        step: Called with the name of every step, for tests that kill us there.
    """

    def __init__(
        self, bus: Bus, client: Client, pools: Pools, source: str, *, clock: Callable[[], float] = time.time,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._bus = bus
        self._client = client
        self._pools = pools
        self._source = source
        self._clock = clock
        self._step = step

    async def look(self, pool: str) -> None:
        """Bring a pool's campaign on by a step, if it has one or is to have one.

        Raises:
            BusError, CallError, KubeError: What could not be reached; the next look goes on.
        """
        now = datetime.fromtimestamp(self._clock(), UTC)
        schedule = self._schedule(pool)
        seq, before = await self._read(pool)
        if before is not None and before.end and not before.reopened:
            waiting = self._pools.waiting_since(pool, _EVER)
            if not reopens(before, schedule, waiting, now):
                return
            await self._reopen(before)
            await self._write(msgspec.structs.replace(before, reopened=True), seq)
            return
        if before is None or before.end:
            slot = due(schedule, before, now) if schedule is not None else None
            if slot is not None:
                await self._write(Campaign(pool=pool, slot=slot), seq)
            return
        after = out_of_time(before, schedule, now)
        if after is None:
            assert schedule is not None  # noqa: S101  for mypy: without one it is out of time
            after = await (self._empty(before, now) if before.node else self._choose(before, schedule, now))
        self._step("decided")
        if after != before:
            await self._write(after, seq)
            self._step("written")

    def _schedule(self, pool: str) -> Schedule | None:
        spec = self._pools.spec(pool)
        compaction = spec.node_manager_config.node_compaction if spec is not None else None
        try:
            return schedule_of(compaction.defrag) if compaction is not None else None
        except RequestError as error:
            log.warning("pool %s: %s", pool, error)
            return None

    async def _choose(self, campaign: Campaign, schedule: Schedule, now: datetime) -> Campaign:
        """Choose the next node, unless a pod on it must not be evicted."""
        held = self._pools.lightly_used(campaign.pool, schedule.threshold)
        requests: dict[str, GpuRequest] = {}
        for allocation in held:
            stored = await records.latest(
                self._bus, STATE, subjects.state("pod", allocation.namespace, allocation.name)
            )
            try:
                pod = decode_as(Pod, stored.payload).data if stored.payload else None
            except UndecodableError:
                pod = None
            if pod is not None and pod.uid == allocation.pod_uid:
                requests[pod.uid] = pod.request
        fixed = {one.pod_uid: "critical pods are not disrupted" for one in held if one.qos == "critical"}
        query = Emptiable(
            pool=campaign.pool, threshold=schedule.threshold, requests=requests, fixed=fixed | self._pools.guarded(),
            skip=(*campaign.emptied, *campaign.skipped, *self._pools.kept(campaign.pool)),
        )  # fmt: skip
        answer = await rpc.call(self._bus, "inspect", query, Answer, timeout=ASK_TIMEOUT_S)
        after = chosen(campaign, msgspec.json.decode(answer.body, type=Defrag), now)
        if after.node and (why := await self._must_stay(after)):
            return skipped(after, why)
        return after

    async def _must_stay(self, campaign: Campaign) -> str:
        """Return why a pod that is to be evicted must not be; empty if all may."""
        query = {"fieldSelector": f"spec.nodeName={campaign.node}"}
        found = _pods.decode(await self._client.call("GET", resource_path("v1", "pods"), query=query)).items
        there = {pod.metadata.uid: pod for pod in found}
        for uid, name in sorted(campaign.evicting.items()):
            pod = there.get(uid)
            if pod is None:
                return f"{name} is not on it in the API server"
            if not any(owner.controller for owner in pod.metadata.owner_references):
                return f"nobody would make {name} anew: it has no controller"
            if any("true" in (pod.metadata.annotations.get(key), pod.metadata.labels.get(key)) for key in KEEP_LABELS):
                return f"{name} must not be disrupted"
        return ""

    async def _empty(self, campaign: Campaign, now: datetime) -> Campaign:
        """Close the node, evict what is still on it, and see how far that has come."""
        held = await self._held(campaign.node)
        if any(uid not in campaign.evicting for uid in held):
            return emptying(campaign, held, (), "", now)
        await close_node(self._client, campaign.node, SOURCE_LABEL, closed=True)
        self._step("closed")
        blocked = ""
        for uid in sorted(held):
            if not blocked:
                namespace, _, name = held[uid].partition("/")
                evicted = await evict(self._client, namespace, name, uid)
                blocked = f"{held[uid]}: {evicted.message}" if evicted.outcome == "blocked" else ""
            self._step("evicted")
        waiting = self._pools.waiting_since(campaign.pool, campaign.slot)
        return emptying(campaign, await self._held(campaign.node), waiting, blocked, now)

    async def _held(self, node: str) -> dict[str, str]:
        """Ask the ledger itself which pods hold something of a node.

        Raises:
            UndecodableError: Its record cannot be read.
        """
        stored = await records.latest(self._bus, LEDGER, subjects.ledger_node(node))
        allocations = decode_as(NodeRecord, stored.payload).data.allocations if stored.payload else ()
        return {one.pod_uid: f"{one.namespace}/{one.name}" for one in allocations}

    async def forget(self, pool: str) -> None:
        """Open the nodes of a campaign again and forget it: its pool is no more.

        Raises:
            BusError, KubeError: What could not be reached.
        """
        seq, campaign = await self._read(pool)
        if campaign is None:
            return
        if not campaign.reopened:
            await self._reopen(campaign)
        await records.erase(self._bus, subjects.state(KIND, pool), expected=seq)

    async def _reopen(self, campaign: Campaign) -> None:
        for node in campaign.closed:
            await close_node(self._client, node, SOURCE_LABEL, closed=False)
            self._step("opened")
        log.info("campaign of pool %s ended: %s %s", campaign.pool, campaign.end, campaign.message)

    async def _read(self, pool: str) -> tuple[int, Campaign | None]:
        stored = await records.latest(self._bus, STATE, subjects.state(KIND, pool))
        try:
            return stored.seq, decode_as(Campaign, stored.payload).data if stored.payload else None
        except UndecodableError as error:
            log.warning("the campaign of pool %s is unreadable and over: %s", pool, error)
            now = datetime.fromtimestamp(self._clock(), UTC)
            return stored.seq, ended(
                Campaign(pool=pool, slot=now, reopened=True), "Surprised", "its record is unreadable", now
            )

    async def _write(self, campaign: Campaign, seq: int) -> None:
        """Replace the record; who comes second does nothing, for the first has gone on."""
        event = Event(
            id=f"defrag:{campaign.pool}:{seq}", source=self._source, type="gpubus.campaign.v1", subject=campaign.pool,
            time=datetime.fromtimestamp(self._clock(), UTC), data=campaign,
        )  # fmt: skip
        try:
            await records.replace(self._bus, subjects.state(KIND, campaign.pool), event, expected=seq)
        except ConflictError:
            log.info("pool %s: somebody else has brought its campaign on", campaign.pool)
