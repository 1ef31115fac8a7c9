"""Workloads and their clients: the fold of what is set, of pools' templates, of rollouts and of pods that use workers. No I/O."""

from collections.abc import Callable

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from schemas.dialects.text import RequestError
from schemas.event import utc
from schemas.kube.components import worker_overrides
from schemas.kube.defaults import Settings
from schemas.kube.resources import CustomResource, TensorFusionWorkload
from schemas.remote import Connection, RemoteClient
from schemas.rollout import ComponentSpec, Member, Rollout, Template
from schemas.rollout_template import made_from, member_hashes

STATE_FILTERS = (
    "gpubus.state.config.*.*.*",
    "gpubus.state.component.*.worker",
    "gpubus.state.member.*.worker.*",
    "gpubus.state.client.*.*",
    "gpubus.state.connection.*.*",
)
LEDGER_FILTERS = ("gpubus.ledger.rollout.*.worker",)

Key = tuple[str, str]
"""Namespace and name of a workload."""


class Source(msgspec.Struct, frozen=True):
    """What a workload's workers are made from.

    Attributes:
        hash: What a worker is labelled with that is made from it.
    """

    pool: str
    vendor: str
    template: Template
    hash: str


class View:
    """All workloads; ``changed`` is called with each of which the workers may be others now."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self.settings = Settings(self._on_settings)
        self._specs: dict[str, ComponentSpec] = {}
        self._targets: dict[str, Template | None] = {}
        self._clients: dict[Key, RemoteClient] = {}
        self._of: dict[Key, dict[str, RemoteClient]] = {}
        self._connected: dict[Key, str] = {}

    def keys(self) -> list[Key]:
        """Return all workloads, and those that clients call for."""
        return sorted({*self.settings.workloads.items, *self._of})

    def workload(self, key: Key) -> TensorFusionWorkload | None:
        """Return a workload, if there is one that is not being deleted."""
        return self.settings.workload(*key)

    def clients(self, key: Key) -> list[RemoteClient]:
        """Return the clients of a workload, by name."""
        return [client for _, client in sorted(self._of.get(key, {}).items())]

    def source(self, key: Key) -> Source:
        """Return what a workload's workers are made from: what its pool's rollout says, else what the pool wants.

        Raises:
            RequestError: Nothing is known to make them from.
        """
        workload, pool = self.settings.workload(*key), self.settings.workload_pool(*key)
        if workload is None or not pool:
            fix = "state a pool, or annotate one as the default"
            raise RequestError("spec.poolName", "", "names no pool and there is no default", fix)
        if pool in self._targets:
            template = self._targets[pool]
            problem, fix = "has a rollout whose record cannot be read", "see `gpubus dead list`"
        else:
            template = self._specs[pool].template if pool in self._specs else None
            problem, fix = "configures no workers", "create it, or set its spec.componentConfig.worker"
        if template is None:
            raise RequestError("pool", pool, problem, fix)
        vendor = self.settings.workload_vendor(*key)
        member = Member(
            pool=pool, component="worker", name="/".join(key), uid="", hash="", created_at=utc(0), vendor=vendor,
            overrides=worker_overrides(workload.spec),
        )  # fmt: skip
        return Source(pool, vendor, template, member_hashes(template)(member))

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE.

        Raises:
            UndecodableError: It cannot be read; what was known stays.
        """
        kind, *names = _names(record.subject)
        match kind, names:
            case "config", [plural, namespace, name]:
                data = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
                try:
                    self.settings.apply(plural, namespace, name, data)
                except msgspec.ValidationError as error:
                    raise UndecodableError(str(error)) from None
            case "component", [pool, _]:
                if record.deleted:
                    self._specs.pop(pool, None)
                else:
                    self._specs[pool] = codec.decode_as(ComponentSpec, record.payload).data
                self._on_pool(pool)
            case "member", [_, _, name]:
                namespace, _, own = name.partition("/")
                self._changed((namespace, own))
            case "client", [namespace, name]:
                client = None if record.deleted else codec.decode_as(RemoteClient, record.payload).data
                self._on_client((namespace, name), client)
            case "connection", [namespace, name]:
                workload = self._connected.pop((namespace, name), "")
                if not record.deleted:
                    self._connected[namespace, name] = codec.decode_as(Connection, record.payload).data.workload
                elif workload:
                    self._changed((namespace, workload))

    def _on_client(self, pod: Key, after: RemoteClient | None) -> None:
        before = self._clients.pop(pod, None)
        if before is not None:
            key = (before.namespace, before.workload)
            self._of[key].pop(before.name)
            if not self._of[key]:
                del self._of[key]
            self._changed(key)
        if after is not None:
            key = (after.namespace, after.workload)
            self._clients[pod] = after
            self._of.setdefault(key, {})[after.name] = after
            self._changed(key)

    def on_ledger(self, record: Record) -> None:
        """Apply one record of LEDGER.

        Raises:
            UndecodableError: It cannot be read: then no workers of its pool are made.
        """
        pool = _names(record.subject)[1]
        before = self._targets.pop(pool, None)
        if not record.deleted:
            self._targets[pool] = None
            self._targets[pool] = made_from(codec.decode_as(Rollout, record.payload).data)
        if self._targets.get(pool) != before:
            self._on_pool(pool)

    def forget_records(self) -> None:
        """LEDGER was made anew."""
        self._targets.clear()

    def _on_pool(self, pool: str) -> None:
        for key in self.keys():
            if self.settings.workload_pool(*key) == pool:
                self._changed(key)

    def _on_settings(self, plural: str, namespace: str, name: str) -> None:
        if plural == "tensorfusionworkloads":
            self._changed((namespace, name))
        elif plural == "gpupools":
            for key in self.keys():
                self._changed(key)


def _names(subject: str) -> list[str]:
    try:
        return list(subjects.names(subject)[1:])
    except ValueError as error:
        raise UndecodableError(str(error)) from None
