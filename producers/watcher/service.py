"""The watcher's shell: reflectors feed the world, and what has changed is said on the bus."""

import asyncio
import logging
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import Client
from bus.kube.reflector import Reflector, Resource
from bus.streams import LEDGER
from bus.tasks import end, until_first
from producers.watcher.mirror import Mirror, Wish
from producers.watcher.plan import POD, Key, Outgoing
from producers.watcher.scheduling import ConfigMap, SchedulerConfig
from producers.watcher.told import Told
from producers.watcher.volumes import Claim, PersistentVolume
from producers.watcher.world import World, subject_of
from schemas.cluster import PreemptionScope
from schemas.kube.base import API_VERSION
from schemas.kube.core import KubeNode, KubePod
from schemas.kube.policy import KubeNamespace, PodDisruptionBudget
from schemas.kube.resources import ResourceQuota, TensorFusionConnection

log = logging.getLogger("gpubus.watcher")

BATCH: Final = 512
"""Objects told together: enough to hide the round trip, few enough to keep the loop going."""

BEHIND: Final = 8 * BATCH
"""Objects that may wait to be told while a list is read: each is held whole until then."""

RETRY_S: Final = 0.2
FRESH_S: Final = 180.0
"""A view that has not been confirmed for so long is not fresh any more."""


class WatcherStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``overtaken`` counts facts that another replica's came before."""

    told: int
    commands: int
    overtaken: int
    refused: int
    objects: int
    lists: int
    events: int
    undecodable: int


class Saying(msgspec.Struct):
    """A batch made ready: commands, what STATE shall hold, and by subject which objects all that is about."""

    commands: list[Outgoing]
    wishes: list[Wish]
    about: dict[str, tuple[str, Key, Told]]


class _Holder(msgspec.Struct, frozen=True, gc=False):
    pod_uid: str


class _Holders(msgspec.Struct, frozen=True, gc=False):
    """The part of a node's ledger record that tells which pods are in it."""

    allocations: tuple[_Holder, ...]


class Watcher:
    """One watcher process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        preemption: Whose pods may be evicted for others. Replicas must agree.
        scheduler_config: Namespace, name and key of the ConfigMap that says how pools schedule; None leaves them at defaults.
    """

    def __init__(
        self,
        bus: Bus,
        client: Client,
        *,
        preemption: PreemptionScope = "never",
        scheduler_config: tuple[str, str, str] | None = None,
    ) -> None:
        self._news, self._quiet, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.world = World(self._on_news, preemption=preemption)
        self._mirror = Mirror(bus, self.world.review)
        self._ledger = Follower(bus, LEDGER, ["gpubus.ledger.node.*"], self._on_ledger)
        world = self.world
        self._settings: list[Reflector[Any]] = [
            Reflector(client, Resource(API_VERSION, plural, struct), shelf)
            for plural, (shelf, struct) in world.settings.shelves.items()
        ]
        self._settings += [
            Reflector(client, Resource("v1", "resourcequotas", ResourceQuota), world.native_quotas),
            Reflector(client, Resource("v1", "persistentvolumeclaims", Claim), world.claims),
            Reflector(client, Resource("v1", "persistentvolumes", PersistentVolume), world.volumes),
            Reflector(client, Resource("v1", "namespaces", KubeNamespace), world.namespaces),
            Reflector(
                client, Resource(API_VERSION, "tensorfusionconnections", TensorFusionConnection), world.connections
            ),
            Reflector(client, Resource("policy/v1", "poddisruptionbudgets", PodDisruptionBudget), world.budgets),
        ]
        self._config = SchedulerConfig(world.settings, scheduler_config) if scheduler_config is not None else None
        if self._config is not None:
            only = f"metadata.name={self._config.name}"
            resource = Resource("v1", "configmaps", ConfigMap, only, namespace=self._config.namespace)
            self._settings.append(Reflector(client, resource, self._config))
        self._nodes: Reflector[KubeNode] = Reflector(client, Resource("v1", "nodes", KubeNode), world.nodes)
        self._pods: Reflector[KubePod] = Reflector(client, Resource("v1", "pods", KubePod), world, pace=self._pace)
        self._told = self._commands = self._overtaken = 0

    def unready(self) -> str:
        """Return of which objects the view is not complete, or not known to be current; empty when it is of all."""
        stale = [one.plural for one in self._reflectors if one.age_s >= FRESH_S]
        if stale:
            return f"not current: {', '.join(stale)}"
        return self._config.unready() if self._config is not None else ""

    @property
    def _reflectors(self) -> list[Reflector[Any]]:
        return [*self._settings, self._nodes, self._pods]

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Watch until ``stop`` is set. ``ready`` is set when everything that exists has been told."""
        await self._mirror.start()
        await self._ledger.start()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(stop.wait(), name="watcher-stop"),
            asyncio.create_task(self._watch(ready), name="watcher"),
        ]
        try:
            await until_first(*tasks)
        finally:
            await self._ledger.stop()
            await self._mirror.stop()

    def _on_news(self) -> None:
        """Something has changed: it is quiet no more, even before the task that tells it gets its turn."""
        self._news.set()
        self._quiet.clear()

    async def _watch(self, ready: asyncio.Event | None) -> None:
        async with asyncio.TaskGroup() as group:
            # A pod means what it means under its pool and profile: those come first.
            for reflector in self._settings:
                group.create_task(reflector.run())
            for reflector in self._settings:
                await reflector.loaded.wait()
            group.create_task(self._tell())
            for reflector in (self._nodes, self._pods):
                group.create_task(reflector.run())
            for reflector in (self._nodes, self._pods):
                await reflector.loaded.wait()
            self.world.compare(self._mirror.subjects())
            await self._quiet.wait()
            if ready is not None:
                ready.set()

    def _on_ledger(self, record: Record) -> None:
        node = subjects.names(record.subject)[-1]
        try:
            held = () if record.deleted else codec.decode_as(_Holders, record.payload).data.allocations
        except UndecodableError as error:
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)
        else:
            self.world.holders(node, frozenset(one.pod_uid for one in held))

    async def _pace(self) -> None:
        """Wait until what was read has been told, most of it."""
        await asyncio.sleep(0)
        while len(self.world.dirty) > BEHIND:
            self._room.clear()
            await self._room.wait()

    async def _tell(self) -> None:
        """Say everything that has changed, again and again: one batch is made ready while another is under way."""
        under_way: asyncio.Task[None] | None = None
        busy: set[tuple[str, Key]] = set()
        dirty = self.world.dirty
        try:
            while True:
                self._news.clear()
                batch = list(islice((one for one in dirty if one not in busy), BATCH))
                ready = self._prepare({one: dirty.pop(one) for one in batch})
                if under_way is not None:
                    await under_way
                    under_way = None
                    busy.clear()
                self._room.set()
                if batch:
                    busy.update(batch)
                    under_way = asyncio.create_task(self._say(ready), name="watcher-say")
                elif not dirty:
                    self._quiet.set()
                    await self._news.wait()
        finally:
            await end(under_way)

    def _prepare(self, batch: dict[tuple[str, Key], bool]) -> Saying:
        """Return what has to be said of some objects. What nothing has to be said of is done with."""
        at = datetime.now(UTC)
        saying = Saying([], [], {})
        for (kind, key), news in batch.items():
            subject = subject_of(kind, key)
            stored = self._mirror.stored(subject)
            if kind == POD:
                saying.commands += self.world.pods.owed(key, stored, at)
            told = self.world.tell(kind, key, stored, at, self._mirror.seq, news=news)
            if told is None:
                self.world.done(kind, key, stored.version if stored is not None else 0)
                continue
            saying.commands += told.commands
            saying.about[subject] = (kind, key, told)
            if told.payload or stored is not None:
                saying.wishes.append(Wish(subject, told.payload, self._mirror.last(subject), told.stored))
        return saying

    async def _say(self, saying: Saying) -> None:
        """Say it: the commands before the facts that make them superfluous."""
        await self._mirror.say(saying.commands)
        self._commands += len(saying.commands)
        failed = {wish.subject for wish in await self._mirror.replace(saying.wishes)}
        self._told += len(saying.wishes) - len(failed)
        self._overtaken += len(failed)
        for subject, (kind, key, told) in saying.about.items():
            if subject in failed:
                self.world.again(kind, key, told)
            else:
                self.world.done(kind, key, told.version)
        if failed and len(failed) == len(saying.wishes):
            await asyncio.sleep(RETRY_S)  # the bus is away, most likely

    def statistics(self) -> WatcherStatistics:
        """Return the counters of this watcher."""
        counted = [one.statistics() for one in self._reflectors]
        return WatcherStatistics(
            told=self._told,
            commands=self._commands,
            overtaken=self._overtaken,
            refused=self.world.pods.refused,
            objects=sum(one.objects for one in counted),
            lists=sum(one.lists for one in counted),
            events=sum(one.events for one in counted),
            undecodable=sum(one.undecodable for one in counted),
        )
