"""What the GPUs of a node would report: samples that follow what is allocated there.

No state and no clock: the same allocations, tick and seed give the same sample. Chance comes from a hash, so one pod's
curve does not depend on which others there are.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.catalogue import lookup
from schemas.cluster import GpuDevice, GpuInventory
from schemas.decision import GpuGrant
from schemas.ledger import Allocation
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

FULL: Final = 100.0
"""Percent of a GPU's compute."""

STEADY_COMPUTE: Final = (0.55, 0.95)
STEADY_VRAM: Final = (0.60, 0.90)
"""Part of its grant that a pod uses throughout its life, between these bounds."""

WOBBLE: Final = 0.05
"""Part of its grant by which a pod's use rises above the steady part from tick to tick, at most."""

IDLE_C: Final = 32
LOADED_C: Final = 78
"""Temperature of a GPU without and with full load, degrees Celsius."""

IDLE_POWER: Final = 0.15
"""Part of its power limit that an idle GPU draws."""


def sample_node(
    inventory: GpuInventory,
    allocations: Iterable[Allocation],
    *,
    tick: int,
    seed: int,
    at: datetime,
) -> NodeUsage:
    """Return what the node's GPUs do at one tick.

    Every pod uses 55 to 100 % of the compute and 60 to 95 % of the VRAM granted to it. Where more is granted than the
    device has, pods share what there is in proportion.

    Args:
        inventory: The node's GPUs.
        allocations: What pods hold on the node; grants on GPUs that are not in the inventory are passed over.
        tick: Number of the sample.
        seed: Seed of the simulation.
        at: Time stamp of the sample.

    Raises:
        UnknownModelError: A GPU's model is not in the catalogue.
    """
    held: defaultdict[str, list[tuple[str, GpuGrant]]] = defaultdict(list)
    for allocation in allocations:
        for grant in allocation.gpus:
            held[grant.uuid].append((allocation.pod_uid, grant))
    return NodeUsage(
        node=inventory.node,
        at=at,
        gpus=tuple(_sample_gpu(device, held[device.uuid], tick, seed) for device in inventory.gpus),
    )


def _sample_gpu(device: GpuDevice, held: list[tuple[str, GpuGrant]], tick: int, seed: int) -> GpuSample:
    percents = []
    vrams = []
    for pod_uid, grant in held:
        share = FULL * grant.tflops_milli / device.tflops_milli if device.tflops_milli else 0.0
        percents.append(share * _part(STEADY_COMPUTE, f"{seed}/{device.uuid}/{pod_uid}/compute", tick))
        vrams.append(grant.vram_bytes * _part(STEADY_VRAM, f"{seed}/{device.uuid}/{pod_uid}/vram", tick))
    percent_scale = min(1.0, FULL / sum(percents)) if sum(percents) else 1.0
    vram_scale = min(1.0, device.vram_bytes / sum(vrams)) if sum(vrams) else 1.0
    processes = tuple(
        ProcessUsage(pod_uid=pod_uid, vram_bytes=int(vram * vram_scale), sm_percent=round(percent * percent_scale, 1))
        for (pod_uid, _), percent, vram in zip(held, percents, vrams, strict=True)
    )
    load = min(1.0, sum(percents) / FULL)
    limit_mw = lookup(device.model).power_mw
    return GpuSample(
        uuid=device.uuid,
        sm_percent=round(load * FULL, 1),
        vram_used_bytes=sum(process.vram_bytes for process in processes),
        temperature_c=round(IDLE_C + (LOADED_C - IDLE_C) * load),
        power_mw=round(limit_mw * (IDLE_POWER + (1 - IDLE_POWER) * load)),
        processes=processes,
    )


def _part(steady: tuple[float, float], use: str, tick: int) -> float:
    """Return the part of a grant that ``use`` takes at ``tick``: its own steady level plus a wobble."""
    low, high = steady
    return low + (high - low) * _chance(use) + WOBBLE * _chance(f"{use}/{tick}")


def _chance(text: str) -> float:
    """Return a number from 0 to below 1 that looks random and belongs to ``text``."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48
