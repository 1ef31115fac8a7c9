"""What operators have set, as the bus says it: admission reads a pod with the same pools, profiles and quotas as the watcher."""

import logging
from functools import lru_cache
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE
from consumers.mutator.clients import LEDGER_FILTER, STATE_FILTER, Clients
from consumers.mutator.context import Context
from consumers.mutator.options import Images, Options
from consumers.mutator.quotas import Quotas
from schemas.cluster import Namespace
from schemas.kube.defaults import Settings
from schemas.kube.resources import CustomResource
from schemas.kube.workloads import WorkloadProfileSpec

log = logging.getLogger("gpubus.mutator")

_NAMESPACES: Final = "gpubus.state.namespace.*"


class Operators:
    """Settings of the cluster, kept current.

    Args:
        bus: The connection.
        options: What the role's file says.
    """

    def __init__(self, bus: Bus, options: Options) -> None:
        self._options = options
        self._settings = Settings(self._changed)
        self._context: Context | None = None
        self._clients = Clients()
        self._quotas = Quotas(bus)
        self._namespaces: dict[str, dict[str, str]] = {}
        filters = [f"{subjects.subject('state', 'config')}.>", _NAMESPACES, STATE_FILTER]
        self._state = Follower(bus, STATE, filters, self._on_state)
        self._ledger = Follower(bus, LEDGER, [LEDGER_FILTER], self._on_client, recreated=self._clients.forget_records)

    async def start(self) -> None:
        """Begin to follow, and return when everything that is set is known."""
        await self._ledger.start()
        await self._state.start()
        await self._quotas.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._quotas.stop()
        await self._state.stop()
        await self._ledger.stop()

    def _on_client(self, record: Record) -> None:
        try:
            self._clients.apply(record)
        except UndecodableError as error:  # the updater buries it
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)

    def _on_namespace(self, record: Record) -> None:
        try:
            *_, name = subjects.names(record.subject)
            data = None if record.deleted else codec.decode_as(Namespace, record.payload).data
        except (UndecodableError, ValueError) as error:
            log.warning("STATE %d on %s: %s", record.seq, record.subject, error)
            return
        if data is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = data.labels

    def _on_state(self, record: Record) -> None:
        if record.subject.startswith(_NAMESPACES[:-1]):
            self._on_namespace(record)
            return
        if not record.subject.startswith("gpubus.state.config."):
            self._on_client(record)
            return
        try:
            _, _, plural, namespace, name = subjects.names(record.subject)
            data = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
            self._settings.apply(plural, namespace, name, data)
        except (UndecodableError, ValueError, msgspec.DecodeError) as error:
            # What was set before stays in force; the watcher has refused it to its user already.
            log.warning("STATE %d on %s: %s", record.seq, record.subject, error)

    def _changed(self, _plural: str, _namespace: str, _name: str) -> None:
        self._context = None

    def _profile(self, namespace: str, name: str) -> WorkloadProfileSpec | None:
        item = self._settings.profiles.items.get((namespace, name))
        return item.spec if item is not None else None

    def context(self) -> Context:
        """Return everything as it is now."""
        if self._context is None:
            options, settings = self._options, self._settings
            images = {
                item.spec.vendor: Images(
                    limiter=item.spec.images.middleware,
                    client=item.spec.images.remote_client,
                    worker=item.spec.images.remote_worker,
                )
                for item in settings.providers.items.values()
            }
            hami = msgspec.structs.replace(
                settings.hami(),
                default_memory_mib=options.default_memory,
                default_cores_percent=options.default_cores,
                default_gpu_num=options.default_gpu_num,
                memory_factor=options.memory_factor,
                force_overwrite_default_scheduler=options.force_overwrite_default_scheduler,
            )
            defaults = lru_cache(maxsize=1024)(settings.defaults)  # until something changes
            self._context = Context(
                options=options,
                images=images,
                hami=hami,
                defaults=defaults,
                clients=self._clients.get,
                profiles=self._profile,
                workload=settings.workload,
                bounds=self._quotas.bounds,
                namespaces=self._namespaces.get,
                pools=frozenset(name for _, name in settings.pools.items),
            )
        return self._context
