"""The updater's hands in a Kubernetes cluster: replaces members when asked to, makes missing agents, and shows progress.

It decides nothing, and any number of these processes share the requests: each is bound to a UID, so that it can come twice.
It is a role of its own because it is the one that may delete pods.
"""

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeError, KubeRefusedError
from bus.rpc import Service
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.updater.agents import make_agent, replace_agent
from consumers.updater.evictions import replace_client, replace_worker
from consumers.updater.hands import ASK, OWNERS, SERVICE
from consumers.updater.notes import NAMESPACE as EVENTS_IN
from consumers.updater.notes import event_of
from consumers.updater.owners import wanted_pods
from consumers.updater.progress import count
from consumers.updater.status import pool_status
from consumers.updater.view import LEDGER_FILTERS, STATE_FILTERS, Key, View
from schemas.kube.base import API_VERSION
from schemas.rollout import Replace, Replaced, Rollout, Wanted, WantedPods
from schemas.rollout_template import made_from, member_hashes

log = logging.getLogger("gpubus.actuator")

NAMESPACE: Final = "tensor-fusion-sys"
"""Where agents run."""

AGAIN_S: Final = 2.0
"""When what the API server would not do is tried again."""

SWEEP_S: Final = 30.0
"""Looks at everything, whatever happened: a pool that was made anew has an empty status."""

GATHER_S: Final = 0.05
MOST_NOTES: Final = 256


class ActuatorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    replaced: int
    made: int
    blocked: int
    failed: int


class Actuator:
    """One actuator process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Name of this process in Events.
        namespace: Where agents run.
    """

    def __init__(self, bus: Bus, client: Client, name: str, *, namespace: str = NAMESPACE) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._view = View()
        self._service = Service(bus, SERVICE, Replace, self._replace, concurrency=16)
        self._asked = Service(bus, ASK, Replace, self._replace, concurrency=16)
        self._owners = Service(bus, OWNERS, Wanted, self._wanted)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self._view.forget_records)
        self._changed: set[Key] = set()
        self._shown: dict[Key, bytes] = {}
        self._notes: deque[dict[str, Any]] = deque(maxlen=MOST_NOTES)
        self._wake = asyncio.Event()
        self._replaced = self._made = self._blocked = self._failed = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Answer requests until ``stop`` is set."""
        await self._state.start()
        await self._ledger.start()
        await self._service.start()
        await self._asked.start()
        await self._owners.start()
        if ready is not None:
            ready.set()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(loop) for loop in (stop.wait(), self._working(), self._sweeping())
        ]
        try:
            await until_first(*tasks)
        finally:
            await self._service.stop()
            await self._asked.stop()
            await self._owners.stop()
            await self._state.stop()
            await self._ledger.stop()

    def _on_state(self, record: Record) -> None:
        try:
            self._look_at(self._view.on_state(record))
        except UndecodableError as error:  # the updater buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            key = self._view.on_ledger(record)
        except UndecodableError as error:
            log.info("%s at %d: %s", record.subject, record.seq, error)
            return
        rollout, _ = self._view.record(key)
        if rollout is not None and (note := event_of(rollout, datetime.now(UTC), self._name)) is not None:
            self._notes.append(note)
        self._look_at(key)

    def _look_at(self, key: Key) -> None:
        self._changed.add(key)
        self._wake.set()

    # Requests

    async def _replace(self, request: Replace) -> Replaced:
        try:
            match request.component:
                case "hypervisor":
                    answer = await replace_agent(self._client, request, self._namespace)
                case "worker":
                    answer = await replace_worker(self._client, request)
                case _:
                    answer = await replace_client(self._client, request)
        except KubeError as error:
            self._failed += 1
            # A refusal tells that nothing was done, but to other pods of the same workload.
            unsure = request.component == "worker" or not isinstance(error, KubeRefusedError)
            return Replaced(outcome="blocked", message=str(error), unsure=unsure)
        self._replaced += answer.outcome == "done"
        self._blocked += answer.outcome == "blocked"
        return answer

    async def _wanted(self, request: Wanted) -> WantedPods:
        return WantedPods(pods=await wanted_pods(self._client, request.owners))

    # Upkeep

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._shown.clear()
            for key in self._view.keys():  # noqa: SIM118  no mapping
                self._look_at(key)

    async def _working(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            self._wake.clear()
            await self._say()
            changed, self._changed = self._changed, set()
            for key in sorted(changed):
                record, _ = self._view.record(key)
                if record is None:
                    continue
                try:
                    await self._make_missing(key, record)
                    await self._show(key, record)
                except KubeError as error:
                    self._failed += 1
                    log.warning("%s of pool %s: %s; trying again", key[1], key[0], error)
                    asyncio.get_running_loop().call_later(AGAIN_S, self._look_at, key)

    async def _say(self) -> None:
        """Write what people want to hear of as Events: best effort, once however many actuators there are."""
        while self._notes:
            path = resource_path("events.k8s.io/v1", "events", EVENTS_IN)
            try:
                await self._client.call("POST", path, body=msgspec.json.encode(self._notes.popleft()))
            except KubeError as error:
                if not (isinstance(error, KubeRefusedError) and error.code == CONFLICT):
                    log.info("an event could not be written: %s", error)

    async def _make_missing(self, key: Key, record: Rollout) -> None:
        """Make the agents of nodes that have none: new nodes, and those whose agent somebody has deleted."""
        seen = self._view.seen(key)
        missing = [member for member in seen.members if not member.uid]
        if key[1] != "hypervisor" or seen.spec is None or not missing:
            return
        template = made_from(record)
        hash_of = member_hashes(template)
        for member in missing:
            request = Replace(
                pool=record.pool, component="hypervisor", name=member.name, uid="", template=template,
                hash=hash_of(member), isolation=member.isolation,
            )  # fmt: skip
            answer = await make_agent(self._client, request, self._namespace)
            self._made += answer.outcome == "done"

    async def _show(self, key: Key, record: Rollout) -> None:
        """Write progress into the pool's status; each component under a name of its own, so that none undoes another."""
        spec, members, stuck = self._view.spec(key), self._view.members(key), self._view.stuck(key)
        refused = spec.policy.refused if spec is not None else ""
        body = msgspec.json.encode(pool_status(record, *count(record, members), refused=refused, stuck=stuck))
        if self._shown.get(key) == body:
            return
        path = resource_path(API_VERSION, "gpupools", name=record.pool, subresource="status")
        query = {"fieldManager": f"gpubus-{record.component}", "force": "true"}
        try:
            await self._client.call("PATCH", path, query=query, body=body, content_type=APPLY)
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
        self._shown[key] = body

    def statistics(self) -> ActuatorStatistics:
        """Return the counters of this actuator."""
        return ActuatorStatistics(replaced=self._replaced, made=self._made, blocked=self._blocked, failed=self._failed)
