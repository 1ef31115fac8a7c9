"""Scores, 0..100, in exact integer arithmetic: the same everywhere, whatever the order of additions.

Used share of an amount = used x 10,000 // capacity, in hundredths of a percent (``_bp``), cut to 0..10,000; 0 where the
capacity is 0. Score of a GPU = VRAM share x VRAM weight + compute share x compute weight, rounded half up to whole percent,
cut to 0..100; ``LowLoadFirst`` and the choice of the least used GPU take the free shares (10,000 - used) instead. Score of
a node = the mean over all its GPUs, rounded down. Capacity is schedulable capacity, oversubscription included, and the
score is that of the state before the pod, as in TensorFusion.

A pod without GPUs ranks nodes in the same mode by CPU and memory: memory takes the weight of VRAM, CPU that of compute.
"""

from typing import Final

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.policy import COMPACT, SPREAD, Policy
from consumers.allocator.engine.rules import ALL_BP

_HALF: Final = ALL_BP // 2
_TOP: Final = 100


def weigh(memory_bp: int, compute_bp: int, policy: Policy) -> int:
    """Return the score of one GPU, or of a node's memory and CPU, from two shares in hundredths of a percent."""
    score = (memory_bp * policy.vram_weight + compute_bp * policy.tflops_weight + _HALF) // ALL_BP
    return min(score, _TOP)


def node_score(host: Host, policy: Policy, *, gpus: bool) -> int:
    """Return a node's score; ``gpus`` tells whether the pod asks for any. A node without GPUs scores 0 then."""
    free = policy.name == SPREAD
    if not gpus:
        memory, cpu = host.memory_bp, host.cpu_bp
        return weigh(ALL_BP - memory, ALL_BP - cpu, policy) if free else weigh(memory, cpu, policy)
    if not host.vram_bp:
        return 0
    vram_weight, tflops_weight, total = policy.vram_weight, policy.tflops_weight, 0
    # `weigh` written out: this line runs for every GPU of every node that changes.
    for vram, tflops in zip(host.vram_bp, host.tflops_bp, strict=True):
        if free:
            vram, tflops = ALL_BP - vram, ALL_BP - tflops  # noqa: PLW2901
        score = (vram * vram_weight + tflops * tflops_weight + _HALF) // ALL_BP
        total += score if score < _TOP else _TOP  # noqa: FURB136
    return total // len(host.vram_bp)


def node_parts(host: Host, policy: Policy, *, gpus: bool) -> dict[str, int]:
    """Return the parts that a node's score is weighed from, each 0..100, rounded down.

    They are used shares, or free shares under ``LowLoadFirst``: ``vram`` and ``tflops`` (means over the node's GPUs), or
    ``memory`` and ``cpu`` for a pod without GPUs.
    """
    if gpus:
        count = len(host.vram_bp)
        parts = {"vram": sum(host.vram_bp) // count, "tflops": sum(host.tflops_bp) // count}
    else:
        parts = {"memory": host.memory_bp, "cpu": host.cpu_bp}
    if policy.name == SPREAD:
        return {name: (ALL_BP - share) // _TOP for name, share in parts.items()}
    return {name: share // _TOP for name, share in parts.items()}


def choose_gpus(host: Host, fitting: list[int], count: int, policy: Policy) -> list[int]:
    """Return the ``count`` slots that the policy takes out of ``fitting``, in slot order.

    Slots are in order of index, then UUID, and sorting is stable, so equal GPUs are taken in that order.
    """
    if len(fitting) == count:
        return fitting
    if count == 1:
        loads = _loads(host, fitting, policy)
        return [max(loads, key=loads.__getitem__)]
    return sorted(prefer_gpus(host, fitting, policy)[:count])


def prefer_gpus(host: Host, fitting: list[int], policy: Policy) -> list[int]:
    """Return all of ``fitting``, those first that the policy would rather take."""
    return sorted(fitting, key=_loads(host, fitting, policy).__getitem__, reverse=True)


def _loads(host: Host, fitting: list[int], policy: Policy) -> dict[int, int]:
    """Return the score of each slot, the highest being the one to take."""
    most_used = policy.name == COMPACT
    loads = {}
    for slot in fitting:
        vram, tflops = host.vram_bp[slot], host.tflops_bp[slot]
        loads[slot] = weigh(vram, tflops, policy) if most_used else weigh(ALL_BP - vram, ALL_BP - tflops, policy)
    return loads
