"""Pods that ask for GPUs in TensorFusion's words: the label ``enabled`` and ``tensor-fusion.ai/*`` annotations.

Contract: TensorFusion 2.17, ``internal/webhook/v1/tf_parser.go`` and ``pod_webhook.go``. We differ where it guesses:

============================================  ======================================  =================================
Pod                                           TensorFusion                            Here
============================================  ======================================  =================================
an amount that is no quantity                 counts as not stated                    refused
TFLOPS beside percent                         percent is dropped, or an error         refused in one pod; a profile's
                                                                                      other unit is overridden
percentage outside 0 to 100                   taken as it is                          refused
request above limit                           taken as it is                          refused
unknown word (qos, isolation, vendor, …)      taken as it is, fits nothing            refused, with the words
vendor in other case, such as ``nvidia``      fits nothing                            ``NVIDIA``
truth value other than ``true``               false                                   Go's truth values, else refused
``gpu-indices`` that are no numbers           index 0                                 refused
``gpu-indices`` beside another count          count is dropped                        refused
native limit that is no whole number          container is skipped                    refused
native limits, no VRAM stated                 whole compute and no VRAM               whole GPUs
native limit of an init container             left to the native scheduler            refused
``inject-container`` without such container   admitted without GPU                    refused
``partition-id``, not ``partitioned``         dropped                                 refused
``partition``, and other mistyped keys        dropped                                 refused, with the key
``gang-min-members`` 0 or below               all members                             refused
gang sizes, ``gang-enabled`` not stated       dropped                                 refused
isolation, pool and locality of a profile     dropped                                 used where no annotation says else
``gpu-model``                                 the driver's name, to the letter        any name of :mod:`.catalogue`
``dedicated-gpu``                             amounts of the model's catalogue entry  whole GPUs that nothing joins
``enabled-replicas: "0"``, other faults       refused                                 left alone
requests without the label                    left alone                              ours; ``enabled: "false"`` is not
``gpu-topology-max-tier`` 0                   1                                       0
============================================  ======================================  =================================
"""

from typing import Final, get_args

from schemas import catalogue
from schemas.cluster import Isolation
from schemas.dialects import text
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.tf_amounts import WHOLE_COMPUTE, merged, stated
from schemas.dialects.tf_containers import Gpus, gpus
from schemas.dialects.tf_defaults import GpuResources, TensorFusionDefaults, WorkloadProfile
from schemas.dialects.tf_gang import gang, topology
from schemas.dialects.tf_words import check_features, isolation, placement
from schemas.dialects.view import POOL_KEY, PodSpecView, host_amounts
from schemas.pod import WHOLE, GpuRequest, Qos

PRIORITIES: Final[dict[Qos, int]] = {"high": 10_000, "critical": 100_000}
"""Values of the priority classes that admission gives to pods of these levels that have none."""

PRIORITY_CLASSES: Final[dict[Qos, str]] = {
    "medium": "tensor-fusion-medium", "high": "tensor-fusion-high", "critical": "tensor-fusion-critical",
}  # fmt: skip
"""Their names. ``medium`` is there for who names it; its value is that of a pod without a class."""

PLACEHOLDER_CLASS: Final = "tensor-fusion-placeholder"
PLACEHOLDER_PRIORITY: Final = -10
"""Class of pods that keep a pool's warm reserve. Below it, cluster autoscaler takes pods for expendable and adds no node for them
(``--expendable-pods-priority-cutoff``).
"""


def parse(pod: PodSpecView, defaults: TensorFusionDefaults) -> GpuRequest | None:
    """Return what the pod asks for, or None when it does not speak this dialect or opts out of it.

    Raises:
        RequestError: It asks for something that cannot be understood or granted as written.
    """
    if not keys.speaks(pod):
        return None
    written = pod.annotation(keys.ENABLED_REPLICAS)
    replicas = text.integer(written, field=keys.ENABLED_REPLICAS, least=0) if written else None
    if replicas == 0:
        return None
    profile = _profile(pod, defaults)
    given = gpus(pod, profile, defaults)
    mode, template = isolation(pod, profile)
    vendor = _vendor(pod, profile, defaults, given, mode)
    model = pod.annotation(keys.MODEL) or profile.model
    dedicated = _dedicated(pod, model, defaults, mode)
    resources, whole_vram = _resources(pod, profile, defaults, native=bool(given.native) and not template)
    if dedicated:
        resources, whole_vram = WHOLE_COMPUTE, True
    elif resources == GpuResources() and not whole_vram and not template:
        if mode != "shared":
            raise RequestError(
                keys.TFLOPS_REQUEST, "", "states no amount, and nothing else does", "state compute and VRAM"
            )
        resources, whole_vram = WHOLE_COMPUTE, True
    asked, limits = resources.requests, resources.limits
    qos = _qos(pod, profile, defaults, resources, dedicated=dedicated)
    cpu, memory = host_amounts(pod)
    check_features(pod)
    protection = pod.annotation(keys.EVICTION_PROTECTION)
    return GpuRequest(
        pool=_pool(pod, profile, defaults),
        count=given.total,
        tflops_milli=asked.tflops_milli,
        compute_milli=asked.compute_milli,
        vram_bytes=asked.vram_bytes,
        vram_milli=WHOLE if whole_vram else 0,
        cpu_milli=cpu,
        memory_bytes=memory,
        models=catalogue.names_with(model, defaults.models) if model else (),
        vendor=vendor,
        qos=qos,
        priority=_priority(pod, qos),
        preempts=pod.preempts,
        tflops_limit_milli=limits.tflops_milli,
        compute_limit_milli=limits.compute_milli,
        vram_limit_bytes=limits.vram_bytes,
        isolation=mode,
        partition_template=template,
        gpu_indices=given.indices,
        dedicated=dedicated or mode == "shared",
        gang=gang(pod, profile, replicas),
        topology=topology(pod),
        workload_profile=pod.annotation(keys.PROFILE),
        eviction_protection_s=text.seconds(protection, field=keys.EVICTION_PROTECTION) if protection else 0,
        remote=placement(pod, profile, defaults) == "remote",
        container_names=given.containers,
        container_counts=given.counts,
        nodes=pod.nodes,
        dialect="tensorfusion",
    )


def _profile(pod: PodSpecView, defaults: TensorFusionDefaults) -> WorkloadProfile:
    name = pod.annotation(keys.PROFILE)
    if not name:
        return WorkloadProfile()
    if defaults.profile is None:
        fix = f"create it in namespace {pod.namespace}, or correct the name"
        raise RequestError(keys.PROFILE, name, "names no WorkloadProfile", fix)
    return defaults.profile


def _pool(pod: PodSpecView, profile: WorkloadProfile, defaults: TensorFusionDefaults) -> str:
    pool = pod.annotation(POOL_KEY) or profile.pool or defaults.pool
    if not pool:
        fix = "set the annotation, or annotate one pool is-default-pool"
        raise RequestError(POOL_KEY, "", "names no pool and there is no default", fix)
    return pool


def _resources(
    pod: PodSpecView, profile: WorkloadProfile, defaults: TensorFusionDefaults, *, native: bool
) -> tuple[GpuResources, bool]:
    """Return the amounts, and whether the pod takes all VRAM of its GPUs. A native limit stands for a whole one."""
    resources = merged((stated(pod), profile.resources, *((WHOLE_COMPUTE,) if native else ()), defaults.quota))
    return resources, native and not resources.requests.vram_bytes


def _vendor(
    pod: PodSpecView, profile: WorkloadProfile, defaults: TensorFusionDefaults, given: Gpus, mode: Isolation
) -> str:
    written = pod.annotation(keys.VENDOR) or profile.vendor
    vendor = given.native
    if written:
        exact = next((known for known in defaults.vendors if known.lower() == written.lower()), written)
        vendor = text.word(exact, field=keys.VENDOR, words=defaults.vendors)
    if given.native and vendor != given.native:
        raise RequestError(
            keys.VENDOR, written, f"contradicts native GPU limits of {given.native}", "drop one of the two"
        )
    if mode == "soft" and vendor in defaults.vendors_without_soft:
        fix = f"set {keys.ISOLATION} to shared, hard or partitioned"
        raise RequestError(keys.ISOLATION, mode, f"has no limiter for {vendor}", fix)
    return vendor


def _dedicated(pod: PodSpecView, model: str, defaults: TensorFusionDefaults, mode: Isolation) -> bool:
    written = pod.annotation(keys.DEDICATED)
    if not written or not text.boolean(written, field=keys.DEDICATED):
        return False
    if mode == "partitioned":
        raise RequestError(
            keys.DEDICATED, written, "is a whole GPU, and isolation is partitioned", "drop one of the two"
        )
    if not model:
        raise RequestError(keys.DEDICATED, written, "needs a GPU model", f"state {keys.MODEL}")
    if defaults.models and not catalogue.known(model, defaults.models):
        text.word(model, field=keys.MODEL, words=tuple(names[0] for names in defaults.models))
    return True


def _qos(
    pod: PodSpecView,
    profile: WorkloadProfile,
    defaults: TensorFusionDefaults,
    resources: GpuResources,
    *,
    dedicated: bool,
) -> Qos:
    written = pod.annotation(keys.QOS)
    if written:
        words: tuple[Qos, ...] = get_args(Qos)
        return text.word(written, field=keys.QOS, words=words)
    if profile.qos:
        return profile.qos
    asked, limits = resources.requests, resources.limits
    guaranteed = asked.tflops_milli and asked.vram_bytes and asked == limits
    return "high" if guaranteed or dedicated else defaults.qos


def _priority(pod: PodSpecView, qos: Qos) -> int:
    if pod.priority_class_name:
        return pod.priority or 0
    return PRIORITIES.get(qos, pod.priority or 0)
