"""What operators have set, put together: pools and their templates, profiles, quotas, vendors. No I/O.

Each object is one source; what depends on several is worked out when it is asked for.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from schemas.cluster import Oversubscription, Pool, PreemptionScope
from schemas.dialects import (
    GangProfile,
    GpuAmounts,
    GpuResources,
    HamiConfig,
    TensorFusionDefaults,
    WorkloadProfile,
)
from schemas.dialects import text as read
from schemas.kube import resources as kube
from schemas.kube.base import GROUP, Amounts, NodeSelector, NodeSelectorTerm, Resources, SelectorTerm
from schemas.kube.components import component_specs
from schemas.kube.core import KubeNode, ObjectMeta, same
from schemas.kube.pools import NodeManagerConfig
from schemas.kube.scheduler import SCHEDULERS, Scheduling
from schemas.kube.selectors import selects
from schemas.rollout import ComponentSpec

SCHEDULER_CONFIG: Final = "schedulerConfig"
"""Stands for the scheduler's configuration where an object's kind is named."""

DEFAULT_POOL: Final = "tensor-fusion.ai/is-default-pool"

GPU_NODES: Final = NodeSelector(
    node_selector_terms=(
        NodeSelectorTerm(
            match_expressions=(SelectorTerm(key="nvidia.com/gpu.present", operator="In", values=("true",)),)
        ),
    )
)
"""The nodes of a pool that selects none."""


class KubeObject(Protocol):
    """An object that has metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its name and version."""


T = TypeVar("T", bound=KubeObject)

Changed = Callable[[str, str, str], None]
"""Called with kind (plural), namespace and name of an object that has changed."""


class Shelf(Generic[T]):
    """All objects of one kind by namespace and name. It is a view in the sense of :class:`bus.kube.reflector.View`."""

    def __init__(self, plural: str, changed: Changed) -> None:
        self._plural = plural
        self._changed = changed
        self.items: dict[tuple[str, str], T] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._listed_at = 0

    def put(self, item: T) -> None:
        """The object is so."""
        key = (item.metadata.namespace, item.metadata.name)
        before = self.items.get(key)
        if before is not None and same(before, item):
            return  # its status, most likely: the version since which it is so stays
        self.items[key] = item
        self._versions[key] = item.metadata.version
        self._changed(self._plural, *key)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The object is no more."""
        self.items.pop((namespace, name), None)
        self._versions[namespace, name] = version
        self._changed(self._plural, namespace, name)

    def complete(self, version: int) -> None:
        """A list has ended."""
        self._listed_at = version

    def version(self, namespace: str, name: str) -> int:
        """Return the version since which an object is as it is, or is no more."""
        return self._versions.get((namespace, name), self._listed_at)


class Settings:
    """The fold of everything that is set; ``changed`` must only schedule work.

    Whoever sees the API server puts objects on the shelves; whoever sees the bus gives :meth:`apply` what STATE says.
    """

    def __init__(self, changed: Changed, *, preemption: PreemptionScope = "never") -> None:
        self._preemption = preemption
        self._changed = changed
        self.scheduling: tuple[Scheduling, int] | None = Scheduling(), 0
        """What the scheduler's configuration says, and the version since which it does; None while that is not known."""
        self.clusters: Shelf[kube.TensorFusionCluster] = Shelf("tensorfusionclusters", changed)
        self.pools: Shelf[kube.GPUPool] = Shelf("gpupools", changed)
        self.templates: Shelf[kube.SchedulingConfigTemplate] = Shelf("schedulingconfigtemplates", changed)
        self.profiles: Shelf[kube.WorkloadProfile] = Shelf("workloadprofiles", changed)
        self.workloads: Shelf[kube.TensorFusionWorkload] = Shelf("tensorfusionworkloads", changed)
        self.quotas: Shelf[kube.GPUResourceQuota] = Shelf("gpuresourcequotas", changed)
        self.providers: Shelf[kube.ProviderConfig] = Shelf("providerconfigs", changed)
        self.shelves: dict[str, tuple[Shelf[Any], type[Any]]] = {
            "tensorfusionclusters": (self.clusters, kube.TensorFusionCluster),
            "gpupools": (self.pools, kube.GPUPool),
            "schedulingconfigtemplates": (self.templates, kube.SchedulingConfigTemplate),
            "workloadprofiles": (self.profiles, kube.WorkloadProfile),
            "tensorfusionworkloads": (self.workloads, kube.TensorFusionWorkload),
            "gpuresourcequotas": (self.quotas, kube.GPUResourceQuota),
            "providerconfigs": (self.providers, kube.ProviderConfig),
        }
        """Shelf and type of every kind, by plural."""

    def schedule(self, scheduling: Scheduling | None, version: int) -> None:
        """The scheduler's configuration says this; None says that what it says is not known."""
        self.scheduling = None if scheduling is None else (scheduling, version)
        self._changed(SCHEDULER_CONFIG, "", "")

    def apply(self, plural: str, namespace: str, name: str, resource: kube.CustomResource | None) -> None:
        """Take over what STATE says of an object; None says that it is no more.

        Raises:
            msgspec.DecodeError: The object cannot be read; what was known of it stays.
        """
        if plural not in self.shelves:
            return
        shelf, struct = self.shelves[plural]
        if resource is None:
            shelf.gone(namespace, name, 0)
        else:
            shelf.put(msgspec.convert({"metadata": resource.metadata(), "spec": resource.spec}, struct))

    def resource(self, plural: str, namespace: str, name: str) -> kube.CustomResource | None:
        """Return what STATE says of an object; None if there is none, or it is a workload that is being deleted."""
        item = self.shelves[plural][0].items.get((namespace, name))
        if item is None:
            return None
        meta = item.metadata
        if plural == "tensorfusionworkloads" and meta.deletion_timestamp:
            return None  # nobody is to make workers for it again while those it has are deleted
        return kube.CustomResource(
            plural=plural,
            namespace=namespace,
            name=name,
            uid=meta.uid,
            labels=meta.labels,
            annotations={key: value for key, value in meta.annotations.items() if key.startswith(f"{GROUP}/")},
            spec=msgspec.to_builtins(item.spec),
        )

    def pool_of(self, labels: dict[str, str], name: str) -> str:
        """Return the pool of a node, the first by name if several select it; empty when none does."""
        for (_, pool), item in sorted(self.pools.items.items()):
            manager = item.spec.node_manager_config
            if manager.multi_vendor_node_selector:
                selectors = tuple(manager.multi_vendor_node_selector.values())
            else:
                selectors = (manager.node_selector or GPU_NODES,)
            if any(selects(selector, labels, name) for selector in selectors):
                return pool
        return ""

    def pool(self, name: str) -> Pool | None:
        """Return a pool as the allocator knows it; None if there is no such pool, or it is not known how it schedules."""
        item = self.pools.items.get(("", name))
        if item is None or self.scheduling is None:
            return None
        scheduling, _ = self.scheduling
        template = self.templates.items.get(("", item.spec.scheduling_config_template))
        capacity = item.spec.capacity_config
        over = capacity.oversubscription if capacity is not None else None
        return Pool(
            name=name,
            placement=template.spec.placement.mode if template is not None else "NodeCompactGPULowLoad",
            vram_weight=scheduling.vram_weight,
            tflops_weight=scheduling.tflops_weight,
            max_workers_per_node=scheduling.max_workers_per_node,
            topology=scheduling.topology,
            node_policy=scheduling.node_policy,
            gpu_policies=scheduling.gpu_policies,
            oversubscription=Oversubscription()
            if over is None
            else Oversubscription(
                tflops_ratio=over.tflops_oversell_ratio,
                host_memory=over.vram_expand_to_host_mem,
                host_disk=over.vram_expand_to_host_disk,
            ),
            preemption=self._preemption,
        )

    def version(self, name: str) -> int:
        """Return the version since which :meth:`pool` returns what it does."""
        item = self.pools.items.get(("", name))
        template = item.spec.scheduling_config_template if item is not None else ""
        _, scheduling = self.scheduling or (None, 0)
        return max(self.pools.version("", name), self.templates.version("", template) if template else 0, scheduling)

    def component(self, pool: str, component: str) -> ComponentSpec | None:
        """Return what a pool wants of one of its components; None if it configures none, or there is no such pool."""
        item = self.pools.items.get(("", pool))
        if item is None:
            return None
        # A generation changes with the specification alone.
        providers = self.providers.items.values()
        revisions = {one.spec.vendor: str(one.metadata.generation) for one in providers}
        images = {
            f"{one.spec.vendor}/{use}": image
            for one in providers
            for use, image in msgspec.to_builtins(one.spec.images).items()
        }
        specs = component_specs(pool, item.spec, revisions, images)
        return {str(name): spec for name, spec in specs.items()}.get(component)

    def component_version(self, pool: str) -> int:
        """Return the version since which :meth:`component` returns what it does."""
        providers = [self.providers.version(*key) for key in self.providers.items]
        return max(self.pools.version("", pool), *providers, 0)

    def manager(self, pool: str, node: KubeNode) -> NodeManagerConfig | None:
        """Return how a pool keeps its nodes, if the node is one of those that have an agent of it."""
        if not self.has_agents(pool) or self.pool_of(node.metadata.labels, node.metadata.name) != pool:
            return None
        return self.pools.items["", pool].spec.node_manager_config

    def has_agents(self, pool: str) -> bool:
        """Return whether a pool configures agents."""
        item = self.pools.items.get(("", pool))
        config = item.spec.component_config if item is not None else None
        return config is not None and config.hypervisor is not None

    def workload(self, namespace: str, name: str) -> kube.TensorFusionWorkload | None:
        """Return a workload that is not being deleted."""
        item = self.workloads.items.get((namespace, name))
        return item if item is not None and not item.metadata.deletion_timestamp else None

    def workload_pool(self, namespace: str, name: str) -> str:
        """Return the pool of a workload; empty when there is no such workload, or no pool for it."""
        item = self.workload(namespace, name)
        return (item.spec.pool_name or self.default_pool()) if item is not None else ""

    def workload_vendor(self, namespace: str, name: str) -> str:
        """Return the vendor of a workload's GPUs: its own, or its pool's."""
        item = self.workload(namespace, name)
        pool = self.pools.items.get(("", self.workload_pool(namespace, name)))
        vendor = pool.spec.node_manager_config.default_vendor if pool is not None else ""
        return (item.spec.vendor if item is not None else "") or vendor

    def default_pool(self) -> str:
        """Return the pool that is annotated as the default, the first by name; empty when none is."""
        return min(
            (
                name
                for (_, name), item in self.pools.items.items()
                if item.metadata.annotations.get(DEFAULT_POOL) == "true"
            ),
            default="",
        )

    def hami(self) -> HamiConfig:
        """Return what holds for pods in HAMi's dialect."""
        return HamiConfig(pool=self.default_pool(), scheduler_names=SCHEDULERS)

    def defaults(self, namespace: str, profile: str, pool: str) -> TensorFusionDefaults:
        """Return what stands behind a TensorFusion pod of ``namespace`` that names ``profile`` and ``pool``.

        Raises:
            RequestError: The profile or the namespace's quota has an amount that cannot be read.
        """
        chosen = self.pools.items.get(("", pool or self.default_pool()))
        qos = chosen.spec.qos_config.default_qos if chosen is not None and chosen.spec.qos_config is not None else None
        local = chosen.spec.default_using_local_gpu if chosen is not None else None
        return TensorFusionDefaults(
            pool=self.default_pool(),
            qos=qos if isinstance(qos, str) else "medium",
            local=local is not False,
            quota=self._quota(namespace),
            profile=self._profile(namespace, profile),
            native_resources=self._native(),
            models=tuple(
                sorted(
                    {
                        tuple(name for name in (model.model, model.full_model_name) if name)
                        for item in self.providers.items.values()
                        for model in item.spec.hardware_metadata
                    }
                )
            ),
        )

    def _native(self) -> tuple[tuple[str, str], ...]:
        """Return the resources of native device plugins that providers name, with their vendors; known ones if none does."""
        named = {
            name: item.spec.vendor
            for _, item in sorted(self.providers.items.items())
            for name in item.spec.in_use_resource_names
        }
        return tuple(named.items()) or TensorFusionDefaults().native_resources

    def _quota(self, namespace: str) -> GpuResources:
        names = sorted(key for key in self.quotas.items if key[0] == namespace)
        single = self.quotas.items[names[0]].spec.single if names else None
        if single is None:
            return GpuResources()
        return GpuResources(
            requests=_amounts(single.default_requests, "quota defaultRequests"),
            limits=_amounts(single.default_limits, "quota defaultLimits"),
        )

    def _profile(self, namespace: str, name: str) -> WorkloadProfile | None:
        item = self.profiles.items.get((namespace, name)) if name else None
        if item is None:
            return None
        spec = item.spec
        gang = spec.gang_scheduling
        timeout = gang.timeout if gang is not None else None
        return WorkloadProfile(
            pool=spec.pool_name,
            resources=read_resources(spec.resources, f"profile {name}"),
            qos=spec.qos if isinstance(spec.qos, str) else "",
            is_local=spec.is_local_gpu if isinstance(spec.is_local_gpu, bool) else None,
            sidecar_worker=spec.sidecar_worker,
            isolation=spec.isolation,
            partition_template=spec.partition_template_id,
            model=spec.gpu_model,
            vendor=spec.vendor,
            count=spec.gpu_count if isinstance(spec.gpu_count, int) else 0,
            indices=spec.gpu_indices,
            replicas=spec.replicas if isinstance(spec.replicas, int) else None,
            gang=None
            if gang is None
            else GangProfile(
                min_members=gang.min_members,
                timeout_s=read.seconds(timeout, field=f"profile {name} timeout") if isinstance(timeout, str) else 0,
            ),
        )


def read_resources(written: Resources | None, field: str) -> GpuResources:
    """Return what a resource states for each GPU.

    Raises:
        RequestError: An amount cannot be read.
    """
    if written is None:
        return GpuResources()
    return GpuResources(
        requests=_amounts(written.requests, f"{field} requests"), limits=_amounts(written.limits, f"{field} limits")
    )


def _amounts(written: Amounts | None, field: str) -> GpuAmounts:
    if written is None:
        return GpuAmounts()
    tflops = read.milli(_text(written.tflops), field=f"{field}.tflops")
    return GpuAmounts(
        tflops_milli=tflops,
        compute_milli=0 if tflops else read.share(_text(written.compute), field=f"{field}.compute"),
        vram_bytes=read.size(_text(written.vram), field=f"{field}.vram"),
    )


def _text(written: object) -> str:
    return str(written) if isinstance(written, int | str) else "0"
