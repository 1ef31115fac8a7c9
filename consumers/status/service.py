"""The status writer's shell: follows the bus and applies what has changed, server-side, a little at a time.

Replicas share the objects by name: each writes those that fall to it among the replicas alive. All see the same log, so one
that writes what another has written changes nothing.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import nats.errors

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, BusError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import NOT_FOUND, KubeError, KubeRefusedError
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.status import render
from consumers.status.children import unwanted_pools, wanted_pools
from consumers.status.fold import STATE_FILTERS, Fold, Shown
from consumers.status.quotas import quota_status
from schemas.event import Event
from schemas.kube.base import API_VERSION, GROUP, Condition
from schemas.kube.kinds import KINDS
from schemas.registry import Presence

log = logging.getLogger("gpubus.status")

MANAGER: Final = "gpubus-status"
REST_S: Final = 1.0
"""Least time between two writes of one object."""

WRITES_PER_S: Final = 100
"""Most writes of one process: the API server has bindings to do."""

AT_ONCE: Final = 8
ALIVE_NS: Final = 10 * 1_000_000_000
PRESENCE_EVERY_S: Final = 3.0
PRESENCE_TTL_S: Final = 10

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_KIND_NAMES: Final = {kind.plural: kind.name for kind in KINDS}
_ORDER: Final = ("tensorfusionclusters", "gpupools", "gpuresourcequotas", "gpunodes", "gpus")


class _Conditions(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class _Conditioned(msgspec.Struct):
    status: _Conditions = msgspec.field(default_factory=_Conditions)


_conditioned = msgspec.json.Decoder(_Conditioned)


class StatusStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    written: int
    unchanged: int
    failed: int
    waiting: int


class StatusWriter:
    """One status writer process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self._bus, self._client, self._name = bus, client, name
        self.fold = Fold(self._changed)
        self._due: dict[Shown, float] = {}
        self._last: dict[Shown, bytes] = {}
        self._conditions: dict[Shown, tuple[Condition, ...]] = {}
        self._kept: dict[str, bytes] = {}
        self._heard: dict[str, int] = {}
        self._alive: tuple[str, ...] = (name,)
        self._state = Follower(bus, STATE, [*STATE_FILTERS, "gpubus.state.status.*"], self._on_state)
        self._ledger = Follower(bus, LEDGER, ["gpubus.ledger.node.*"], self._on_ledger)
        self._written = self._unchanged = self._failed = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Write until ``stop`` is set."""
        await self._state.start()
        await self._ledger.start()
        tasks = [
            asyncio.create_task(loop, name=f"{self._name}-{number}")
            for number, loop in enumerate((stop.wait(), self._write_all(), self._be_present()))
        ]
        if ready is not None:
            ready.set()
        try:
            await until_first(*tasks)
        finally:
            await self._state.stop()
            await self._ledger.stop()

    # What the bus says

    def _on_state(self, record: Record) -> None:
        try:
            if record.subject.startswith("gpubus.state.status."):
                self._on_presence(record)
            else:
                self.fold.on_state(record)
        except (UndecodableError, msgspec.DecodeError, ValueError) as error:
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            self.fold.on_ledger(record)
        except UndecodableError as error:
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)

    def _changed(self, shown: Shown) -> None:
        self._due.setdefault(shown, 0.0)

    # Who writes what

    def _on_presence(self, record: Record) -> None:
        name = subjects.names(record.subject)[-1]
        if record.deleted:
            self._heard.pop(name, None)
        else:
            self._heard[name] = record.time_ns
        newest = max(self._heard.values(), default=0)
        alive = tuple(sorted({name for name, at in self._heard.items() if newest - at < ALIVE_NS} | {self._name}))
        if alive != self._alive:
            self._alive = alive
            for shown in self._last:  # what was another's may be ours now, and it may have died over it
                self._changed(shown)
            self._last.clear()

    def _is_ours(self, shown: Shown) -> bool:
        def weight(name: str) -> bytes:
            return hashlib.blake2b(
                f"{name}/{shown.plural}/{shown.namespace}/{shown.name}".encode(), digest_size=8
            ).digest()

        return max(self._alive, key=weight) == self._name

    async def _be_present(self) -> None:
        subject = subjects.state("status", self._name)
        headers = {"Nats-TTL": f"{PRESENCE_TTL_S}s"}
        while True:
            now = datetime.now(UTC)
            event = Event(
                id=f"{self._name}:{now.isoformat()}",
                source=f"/gpubus/status/{self._name}",
                type="gpubus.presence.v1",
                subject=self._name,
                time=now,
                data=Presence(role="status", name=self._name),
            )
            try:
                await self._bus.publisher.publish(
                    subject, codec.encode(event), headers=headers, timeout=PRESENCE_EVERY_S
                )
            except (ApiError, PublishUnconfirmedError, BusError, nats.errors.Error) as error:
                log.info("%s could not say that it is alive: %s", self._name, error)
            await asyncio.sleep(PRESENCE_EVERY_S)

    # Writing

    async def _write_all(self) -> None:
        """Write what is due, in small batches at a bounded rate."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due = sorted(
                (shown for shown, at in self._due.items() if at <= now), key=lambda one: _ORDER.index(one.plural)
            )[:AT_ONCE]
            if not due:
                await asyncio.sleep(0.1)
                continue
            for shown in due:
                del self._due[shown]
            wrote = await asyncio.gather(*map(self._write_one, due))
            await asyncio.sleep(max(0.0, sum(wrote) / WRITES_PER_S - (loop.time() - now)))

    async def _write_one(self, shown: Shown) -> bool:
        """Write one object if it is ours and says something else than before; return whether the server was asked."""
        if not self._is_ours(shown):
            self._last.setdefault(shown, b"")
            return False
        try:
            return await (self._write_quota if shown.plural == "gpuresourcequotas" else self._write)(shown)
        except KubeError as error:
            self._failed += 1
            self._last.pop(shown, None)
            self._due[shown] = asyncio.get_running_loop().time() + 2 * REST_S
            log.info("%s %s: %s", shown.plural, shown.name, error)
            return True

    async def _write(self, shown: Shown) -> bool:
        now = datetime.now(UTC).strftime(_TIME)
        main: dict[str, Any] | None = None
        status: msgspec.Struct | None = None
        match shown.plural:
            case "gpunodes":
                node = self.fold.nodes.get(shown.name)
                if node is None:
                    return await self._delete(shown)
                labels = {f"{GROUP}/managed-by": node.pool, f"{GROUP}/pool-{node.pool}": "true"}
                main, status = _object(shown, labels, {"manageMode": "AutoSelect"}), render.node_status(self.fold, node)
            case "gpus":
                found = self.fold.device(shown.name)
                if found is None:
                    return await self._delete(shown)
                labels = {f"{GROUP}/managed-by": found[0].name, f"{GROUP}/gpupool": found[0].pool}
                main, status = _object(shown, labels), render.gpu_status(self.fold, *found)
            case "gpupools":
                if ("", shown.name) in self.fold.settings.pools.items:
                    status = render.pool_status(self.fold, shown.name, await self._before(shown), now)
            case "tensorfusionclusters":
                if ("", shown.name) in self.fold.settings.clusters.items:
                    await self._keep_pools(shown.name)
                    status = render.cluster_status(self.fold, shown.name, await self._before(shown), now)
        if status is None:
            self._forget(shown)
            return False
        return await self._apply(shown, main, status)

    async def _write_quota(self, shown: Shown) -> bool:
        now = datetime.now(UTC).strftime(_TIME)
        quota = self.fold.quotas.get((shown.namespace, shown.name))
        if quota is None:
            self._forget(shown)
            return False
        status = quota_status(quota, self.fold.used(shown.namespace), await self._before(shown), now)
        return await self._apply(shown, None, status, {"lastUpdateTime": now})

    async def _keep_pools(self, cluster: str) -> None:
        """Have the cluster's pools as it defines them."""
        for name, document in wanted_pools(self.fold.settings, cluster).items():
            pool, said = Shown("gpupools", name), msgspec.json.encode(document)
            if self._kept.get(name) != said or ("", name) not in self.fold.settings.pools.items:
                await self._patch(pool, "", document)
                self._kept[name] = said
        for name in unwanted_pools(self.fold.settings, cluster):
            self._kept.pop(name, None)
            await self._delete(Shown("gpupools", name))

    async def _apply(
        self, shown: Shown, main: dict[str, Any] | None, status: msgspec.Struct, stamp: dict[str, str] | None = None
    ) -> bool:
        """Write a status that says something new, with a ``stamp`` that alone would be nothing new."""
        said = msgspec.json.encode(status)
        known = self._last.get(shown)
        if known == said:
            self._unchanged += 1
            return False
        if main is not None and not known:
            await self._patch(shown, "", main)
        document = _object(shown)
        document["status"] = msgspec.json.decode(said) | (stamp or {})
        try:
            await self._patch(shown, "status", document)
        except KubeRefusedError as error:
            if error.code != NOT_FOUND or main is not None:
                raise
            self._forget(shown)  # it was deleted, and we shall hear of it
            return True
        self._last[shown] = said
        conditions = getattr(status, "conditions", ())
        if conditions:
            self._conditions[shown] = conditions
        self._written += 1
        if shown in self._due:
            self._due[shown] = asyncio.get_running_loop().time() + REST_S
        return True

    async def _before(self, shown: Shown) -> tuple[Condition, ...]:
        """Return the conditions as they were written last, by whomever."""
        known = self._conditions.get(shown)
        if known is None:
            try:
                body = await self._client.call(
                    "GET", resource_path(API_VERSION, shown.plural, shown.namespace, shown.name)
                )
            except KubeRefusedError as error:
                if error.code != NOT_FOUND:
                    raise
                return ()
            known = self._conditions[shown] = _conditioned.decode(body).status.conditions
        return known

    async def _delete(self, shown: Shown) -> bool:
        self._forget(shown)
        try:
            await self._client.call("DELETE", resource_path(API_VERSION, shown.plural, shown.namespace, shown.name))
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
        return True

    def _forget(self, shown: Shown) -> None:
        self._last.pop(shown, None)
        self._conditions.pop(shown, None)

    def _patch(self, shown: Shown, subresource: str, document: dict[str, Any]) -> Awaitable[bytes]:
        path = resource_path(API_VERSION, shown.plural, shown.namespace, shown.name, subresource)
        query = {"fieldManager": MANAGER, "force": "true"}
        return self._client.call(
            "PATCH", path, query=query, body=msgspec.json.encode(document), content_type=APPLY, timeout=10.0
        )

    def statistics(self) -> StatusStatistics:
        """Return the counters of this writer."""
        return StatusStatistics(
            written=self._written, unchanged=self._unchanged, failed=self._failed, waiting=len(self._due)
        )


def _object(shown: Shown, labels: dict[str, str] | None = None, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": shown.name}
    if shown.namespace:
        meta["namespace"] = shown.namespace
    if labels is not None:
        meta["labels"] = labels
    made: dict[str, Any] = {"apiVersion": API_VERSION, "kind": _KIND_NAMES[shown.plural], "metadata": meta}
    if spec is not None:
        made["spec"] = spec
    return made
