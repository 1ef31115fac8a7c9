"""Pods that ask for GPUs in HAMi's words: ``nvidia.com/*`` resources and ``hami.io/*`` and ``nvidia.com/*`` annotations.

Admission and request parsing are one step here, so a pod means the same before and after its admission. Contract: HAMi
v2.10, ``pkg/device/nvidia/device.go`` and ``pkg/scheduler/webhook.go``. We differ where HAMi guesses:

=============================================  =====================================  ==================================
Pod                                            HAMi                                   Here
=============================================  =====================================  ==================================
``gpumem: 16Gi``, or any number it cannot use  container counts as asking for no GPU  refused, with the number of MiB
``gpumem: 1Gi``                                1073741824 MiB                         refused, with the number of MiB
``gpu`` that is no whole number                container counts as asking for no GPU  refused
``gpumem-percentage: 99.1``                    rounded or ignored                     refused
``gpucores`` above 100                         100                                    refused
``gpumem`` and ``gpumem-percentage`` together  one is placed by, the other scored by  refused
memory or cores, ``defaultGPUNum`` of 0        no GPU                                 refused
the same, in ``requests`` only                 no GPU                                 ``defaultGPUNum``, as in limits
unknown word in a policy                       ``binpack`` or ``spread``              refused, with the words
unknown ``vgpu-mode``                          fits no GPU                            refused, with the words
unreadable ``numa-bind``                       ``false``                              refused
wrong ``device-scoring-weights``               pod stays Pending                      refused
one UUID, or word, in use and nouse            fits no GPU                            refused
mistyped annotation key                        constraint is dropped                  refused, with the key
native sidecar that asks for a GPU             an init container, ends early          counted with the other containers
privileged container, webhook ignored          allowed                                refused
=============================================  =====================================  ==================================

``gpumem-percentage: 0`` means "not given", as HAMi's own fix has it: whole memory, and ``defaultCores`` of compute.
"""

from typing import Final, get_args

from schemas.cluster import VgpuMode
from schemas.dialects import text
from schemas.dialects.hami_config import HamiConfig
from schemas.dialects.hami_containers import MOST_GPUS, bound, requests
from schemas.dialects.text import RequestError, closest
from schemas.dialects.view import POOL_KEY, PodSpecView, host_amounts
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights
from schemas.pod import GpuRequest

NODE_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"
USE_MODELS: Final = "nvidia.com/use-gputype"
AVOID_MODELS: Final = "nvidia.com/nouse-gputype"
USE_UUIDS: Final = "nvidia.com/use-gpuuuid"
AVOID_UUIDS: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
ANNOTATIONS: Final = (
    NODE_POLICY, GPU_POLICY, WEIGHTS, USE_MODELS, AVOID_MODELS, USE_UUIDS, AVOID_UUIDS, NUMA_BIND, VGPU_MODE,
)  # fmt: skip
"""Annotations that only this dialect reads."""

_WEBHOOK: Final = "hami.io/webhook"
PREFIXES: Final = ("hami.io/", "nvidia.com/")
"""Beginnings of the keys that this dialect reads."""
_WEIGHT_KEYS: Final = ("slot", "core", "memory")


def parse(pod: PodSpecView, config: HamiConfig) -> GpuRequest | None:
    """Return what the pod asks for, or None when it asks for no GPU or belongs to another scheduler.

    Label ``hami.io/webhook: ignore`` keeps HAMi's webhook away. Such a pod is ours only when it names our scheduler, and
    then without the webhook's defaults: ``nvidia.com/gpu`` alone takes a GPU's memory but reserves none of its compute.

    Raises:
        RequestError: It asks for something that cannot be understood or granted as written.
    """
    admitted = pod.labels.get(_WEBHOOK) != "ignore"
    if not _ours(pod, config, admitted=admitted):
        return None
    containers = requests(pod, config, admitted=admitted)
    if not containers:
        return None
    _check_keys(pod)
    for container in (*pod.init_containers, *pod.containers):
        if container.privileged:
            name = f"container {container.name} privileged"
            raise RequestError(name, "true", "sees every GPU of its node", "drop privileged or the GPU resources")
    amounts = bound(containers)
    if amounts.gpus > MOST_GPUS:
        fix = f"ask for at most {MOST_GPUS} in all containers together"
        raise RequestError(config.count_name, str(amounts.gpus), "is more GPUs than a pod may have", fix)
    cpu, memory = host_amounts(pod)
    uuids, excluded_uuids = _pair(pod, USE_UUIDS, AVOID_UUIDS, fold=False)
    words, excluded_words = _pair(pod, USE_MODELS, AVOID_MODELS, fold=True)
    alone = len(containers) == 1 and not containers[0].init
    modes = _words(pod, VGPU_MODE, get_args(VgpuMode))
    return GpuRequest(
        pool=_pool(pod, config),
        count=amounts.gpus,
        compute_milli=amounts.compute_milli,
        vram_bytes=amounts.vram_bytes,
        vram_milli=amounts.vram_milli,
        cpu_milli=cpu,
        memory_bytes=memory,
        vendor=config.vendor,
        priority=pod.priority or 0,
        preempts=pod.preempts,
        dedicated=any(container.dedicated for container in containers),
        uuids=uuids,
        excluded_uuids=excluded_uuids,
        model_words=words,
        excluded_model_words=excluded_words,
        numa_bind=_flag(pod, NUMA_BIND),
        vgpu_mode=modes,
        isolation="partitioned" if modes == ("mig",) else "",
        node_policy=_node_policy(pod),
        gpu_policies=_words(pod, GPU_POLICY, get_args(GpuPolicy)),
        scoring_weights=weights(pod.annotation(WEIGHTS)) if pod.annotation(WEIGHTS) else None,
        container_names=(containers[0].name,) if alone else (),
        containers=() if alone else containers,
        nodes=pod.nodes,
        dialect="hami",
    )


def weights(written: str) -> ScoringWeights:
    """Return scoring weights from text such as ``slot=1,core=1,memory=3``.

    Raises:
        RequestError: A key is missing, unknown or repeated, a weight is no whole number of 0 or more, or all are 0.
    """
    fix = "write all three, such as slot=1,core=1,memory=3, each 0 or more and one above 0"
    found: dict[str, int] = {}
    for part in written.split(","):
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _WEIGHT_KEYS or key in found:
            raise RequestError(WEIGHTS, written, f'has "{key[:20]}", which is unknown or repeated', fix)
        if number.startswith("-"):
            raise RequestError(WEIGHTS, written, f'is refused, "{key}" weight must not be negative', fix)
        found[key] = text.integer(number, field=f"{WEIGHTS} {key}", least=0)
    if len(found) < len(_WEIGHT_KEYS) or not any(found.values()):
        raise RequestError(WEIGHTS, written, "lacks a key or has only zeros", fix)
    return ScoringWeights(slot=found["slot"], core=found["core"], memory=found["memory"])


def _ours(pod: PodSpecView, config: HamiConfig, *, admitted: bool) -> bool:
    if pod.scheduler_name in config.scheduler_names:
        return True
    default = not pod.scheduler_name or (
        pod.scheduler_name == "default-scheduler" and config.force_overwrite_default_scheduler
    )
    return admitted and default


def _pool(pod: PodSpecView, config: HamiConfig) -> str:
    pool = pod.annotation(POOL_KEY) or pod.labels.get(POOL_KEY, "") or config.pool
    if not pool:
        raise RequestError(POOL_KEY, "", "names no pool and there is no default", f"set the annotation {POOL_KEY}")
    return pool


def _check_keys(pod: PodSpecView) -> None:
    for key in pod.annotations:
        if key.startswith(PREFIXES) and key not in ANNOTATIONS:
            meant = closest(key, ANNOTATIONS)
            if meant:
                raise RequestError(key, pod.annotations[key], "is under an unknown key", f"did you mean {meant}?")


def _pair(pod: PodSpecView, use: str, avoid: str, *, fold: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    wanted, unwanted = pod.annotation(use), pod.annotation(avoid)
    if fold:
        wanted, unwanted = wanted.lower(), unwanted.lower()
    chosen, excluded = text.names(wanted), text.names(unwanted)
    both = set(chosen) & set(excluded)
    if both:
        raise RequestError(avoid, pod.annotations[avoid], f"excludes what {use} asks for", f"drop {min(both)} from one")
    return chosen, excluded


def _flag(pod: PodSpecView, key: str) -> bool:
    written = pod.annotation(key)
    return text.boolean(written, field=key) if written else False


def _words(pod: PodSpecView, key: str, words: tuple[text.Word, ...]) -> tuple[text.Word, ...]:
    return tuple(text.word(part, field=key, words=words) for part in text.names(pod.annotation(key)))


def _node_policy(pod: PodSpecView) -> NodePolicy:
    written = pod.annotation(NODE_POLICY)
    if not written:
        return ""
    words: tuple[NodePolicy, ...] = ("binpack", "spread")
    return text.word(written, field=NODE_POLICY, words=words)
