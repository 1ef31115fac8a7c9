"""The warm reserve as pods: placeholders that ask for the reserve, go before nobody and give way to everybody. Pure.

A cluster autoscaler or Karpenter knows nothing of GPUs that are shared, but it knows pods that find no place
(``PodScheduled=False``) and what they ask of hosts. So a pool's reserve is kept by pods of ours, each as large as a GPU or
smaller. As long as there is room they stand in it; a real pod that needs it evicts them, and made anew they wait, which is
what makes the cluster grow.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from consumers.scaler.capacity import exceeds
from consumers.scaler.sizes import PoolView
from schemas.capacity import Size
from schemas.dialects import tf_keys as keys
from schemas.dialects.tensorfusion import PLACEHOLDER_CLASS, PLACEHOLDER_PRIORITY
from schemas.dialects.text import RequestError
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION, NodeSelector
from schemas.kube.defaults import GPU_NODES
from schemas.kube.pools import GPUPoolSpec, NodeManagerConfig
from schemas.kube.scheduler import SCHEDULERS
from schemas.ledger import Allocation
from schemas.quantity import format_bytes, format_milli, parse_bytes, parse_milli
from schemas.units import Amount

RESERVE: Final = "tensor-fusion.ai/warm-reserve"
"""Annotation of a pool: what keeps its warm reserve."""

LABEL: Final = "tensor-fusion.ai/placeholder"
SHAPE: Final = "tensor-fusion.ai/placeholder-shape"
"""Annotation of a placeholder: a digest of all that it is made of, so that one made by other settings is known."""

MOST: Final = 200
"""Placeholders of one pool at most: as many nodes as upstream orders at once (tensorfusion.md §9)."""

IMAGE: Final = "registry.k8s.io/pause:3.10"
_NOBODY: Final = 65_535


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What each placeholder of a pool asks for, on one GPU and of its host."""

    tflops_milli: Amount
    vram_bytes: Amount
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0

    @property
    def size(self) -> Size:
        """As an amount of a pool."""
        return Size(gpus=1, tflops_milli=self.tflops_milli, vram_bytes=self.vram_bytes)


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """A placeholder that exists.

    Attributes:
        shape: What it says that it is made of.
        ended: Whether it has come to an end and only its object is left.
        leaving: Whether it is being deleted.
    """

    name: str
    uid: str
    shape: str
    ended: bool = False
    leaving: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be there: so many placeholders alike. ``refusal`` says in words why there are fewer than the reserve needs.

    Without ``follows`` it is not known what is to be there, and they stay as they are.
    """

    chunk: Chunk | None = None
    number: Amount = 0
    refusal: str = ""
    follows: bool = True


def by_placeholders(spec: GPUPoolSpec, annotations: dict[str, str]) -> bool:
    """Return whether a pool's reserve is kept by placeholders: with Karpenter, and where its annotation says so.

    Raises:
        RequestError: The annotation says something else, or not what the pool's ``provisioningMode`` can do.
    """
    mode, word = spec.node_manager_config.provisioning_mode, annotations.get(RESERVE, "")
    if word not in ("", "claims", "placeholders"):
        raise RequestError(RESERVE, word, "is no way to keep a reserve", "write claims or placeholders, or drop it")
    if word == "claims" and mode != "Provisioned":
        raise RequestError(RESERVE, word, f"is not possible with provisioningMode {mode}", "write placeholders")
    if word == "placeholders" and mode == "Provisioned":
        fix = "drop it, or set provisioningMode to Karpenter or AutoSelect"
        raise RequestError(
            RESERVE, word, "would grow a Provisioned pool twice over, whose claims keep its reserve", fix
        )
    return word == "placeholders" or (not word and mode == "Karpenter")


def wanted(view: PoolView, spec: GPUPoolSpec, preemption: str) -> Wanted:
    """Return the placeholders that a pool is to have.

    Each asks for an equal part of the reserve, as large as fits one GPU of the pool. Beyond the pool's maximum there are none.

    Raises:
        QuantityError: An amount of the reserve cannot be read.
    """
    warm = view.bounds.warm
    if not warm.tflops_milli and not warm.vram_bytes:
        return Wanted()
    if preemption != "cluster":
        return Wanted(refusal=f"no placeholders: preemption is {preemption}, so pods would wait for them in vain")
    gpu = _gpu(view)
    if gpu is None:
        return Wanted(
            refusal="no placeholders: no GPU of the pool is known yet, and no offer says what one would be like"
        )
    number = max(_parts(warm.tflops_milli, gpu.tflops_milli), _parts(warm.vram_bytes, gpu.vram_bytes))
    config = spec.capacity_config
    unit = config.warm_resources if config is not None else None
    assert unit is not None  # noqa: S101  for mypy: the reserve was read from it
    field = "spec.capacityConfig.warmResources"
    chunk = Chunk(
        tflops_milli=_parts(warm.tflops_milli, number),
        vram_bytes=_parts(warm.vram_bytes, number),
        cpu_milli=_parts(parse_milli(str(unit.cpu), field=f"{field}.cpu"), number),
        memory_bytes=_parts(parse_bytes(str(unit.memory), field=f"{field}.memory"), number),
    )
    room = _within_maximum(view, chunk, min(number, MOST))
    refusal = f"{room} of {number} placeholders: more would exceed {'the maximum' if room < MOST else MOST}"
    return Wanted(chunk=chunk, number=room, refusal=refusal if room < number else "")


def _gpu(view: PoolView) -> Size | None:
    """Return what the most common GPU of the pool has, the smaller of two; else that of the cheapest offer."""
    known: Counter[tuple[int, int]] = Counter()
    for one in view.machines:
        if one.size.gpus:
            known[one.size.tflops_milli // one.size.gpus, one.size.vram_bytes // one.size.gpus] += one.size.gpus
    usual = [(-count, gpu) for gpu, count in known.items() if all(gpu)]
    if usual:
        tflops, vram = min(usual)[1]
        return Size(tflops_milli=tflops, vram_bytes=vram)
    offer = min(view.offers, key=lambda one: (one.microdollars / one.size.tflops_milli, one.key), default=None)
    return Size(tflops_milli=offer.tflops_milli, vram_bytes=offer.vram_bytes) if offer is not None else None


def _parts(amount: int, part: int) -> int:
    """Divide and round up."""
    return -(-amount // part)


def _within_maximum(view: PoolView, chunk: Chunk, number: int) -> int:
    """Return how many placeholders fit beside what pods have taken, within the pool's maximum."""
    taken = Size()
    for one in view.machines:
        taken = taken.plus(one.size).plus(one.free, -1)
    maximum = msgspec.structs.replace(view.bounds.maximum, gpus=0)
    while number and exceeds(taken.plus(chunk.size, number), maximum):
        number -= 1
    return number


def is_placeholder(allocation: Allocation, namespace: str) -> bool:
    """Return whether what is held is only kept for others: a placeholder of the scaler's own namespace."""
    return allocation.namespace == namespace and allocation.priority == PLACEHOLDER_PRIORITY


def name_of(pool: str, number: int) -> str:
    """Return the name of a pool's placeholder of that number: a name is given once, so none is made twice."""
    return f"{pool}-warm-{number}"


def changes(
    pool: str, number: int, shape: str, present: Sequence[Present]
) -> tuple[tuple[str, ...], tuple[Present, ...]]:
    """Return the names of placeholders to make, and those to delete: surplus, of another shape, or ended.

    One that is deleted to be made anew is made at the next look, when its name is free.
    """
    names = [name_of(pool, place) for place in range(number)]
    there = {one.name: one for one in present}
    delete = [one for one in present if not one.leaving and (one.name not in names or one.ended or one.shape != shape)]
    return tuple(name for name in names if name not in there), tuple(delete)


def pod_of(pool: str, uid: str, spec: GPUPoolSpec, chunk: Chunk, *, namespace: str, image: str) -> dict[str, Any]:
    """Return a placeholder as it is to be created, but for its name."""
    metadata = _metadata(pool, uid, chunk, namespace)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(spec, chunk, image)}
    digest = hashlib.blake2b(msgspec.json.encode(pod, order="deterministic"), digest_size=8).hexdigest()
    metadata["annotations"][SHAPE] = digest
    return pod


def _metadata(pool: str, uid: str, chunk: Chunk, namespace: str) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "labels": {LABEL: "true"},
        "annotations": {
            POOL_KEY: pool,
            keys.TFLOPS_REQUEST: format_milli(chunk.tflops_milli),
            keys.VRAM_REQUEST: format_bytes(chunk.vram_bytes),
            keys.QOS: "low",
            # An autoscaler need not keep a node for it.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
        },
        "ownerReferences": [
            {"apiVersion": API_VERSION, "kind": "GPUPool", "name": pool, "uid": uid, "controller": True}
        ],
    }


def _spec(spec: GPUPoolSpec, chunk: Chunk, image: str) -> dict[str, Any]:
    host = {
        "cpu": format_milli(chunk.cpu_milli) if chunk.cpu_milli else "",
        "memory": format_bytes(chunk.memory_bytes) if chunk.memory_bytes else "",
    }
    container = {
        "name": "placeholder",
        "image": image,
        "resources": {"requests": {key: text for key, text in host.items() if text}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "schedulerName": SCHEDULERS[0],
        "priorityClassName": PLACEHOLDER_CLASS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _nodes(spec)}},
        "tolerations": list(_tolerations(spec.node_manager_config)),
        "containers": [container],
    }


def _nodes(spec: GPUPoolSpec) -> dict[str, Any]:
    """Return the pool's own nodes as affinity: an autoscaler is to add one of those and no other."""
    manager = spec.node_manager_config
    selectors = list(manager.multi_vendor_node_selector.values()) or [manager.node_selector or GPU_NODES]
    terms = tuple(term for one in selectors for term in one.node_selector_terms)
    found: dict[str, Any] = msgspec.to_builtins(NodeSelector(node_selector_terms=terms))
    return found


def _tolerations(manager: NodeManagerConfig) -> Iterable[dict[str, str]]:
    taints = manager.node_provisioner.gpu_taints if manager.node_provisioner is not None else ()
    for taint in taints:
        value = {"operator": "Equal", "value": taint.value} if taint.value else {"operator": "Exists"}
        yield {"key": taint.key, "effect": taint.effect, **value}
