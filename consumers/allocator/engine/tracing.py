"""Which filter each single candidate falls to: what a decision's reports count, by name. For explanations, on no hot path."""

from collections.abc import Iterator
from typing import NamedTuple

from consumers.allocator.engine.crew import loosest
from consumers.allocator.engine.eligibility import Eligibility, GpuKind, screen_key
from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import manner_of
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.rules import COMPUTE, FITS, GPU_COUNT, GPU_FILTERS, STAGE_SHIFT
from consumers.allocator.engine.snapshot import Snapshot
from schemas.pod import GpuRequest


class Fate(NamedTuple):
    """What became of one node.

    Attributes:
        node: Its name.
        stage: The filter that refused it; ``FITS`` for none. Named by ``rules.STAGE_CODES``.
        gpus: For each GPU, by UUID in order of slots, the filter that refused it, or ``FITS``.
    """

    node: str
    stage: int
    gpus: dict[str, int]


def trace(snapshot: Snapshot, request: GpuRequest, policy: Policy) -> Iterator[Fate]:
    """Yield the fate of every node of the request's pool, by name, as :func:`.decide` judges them.

    Rules: :mod:`~consumers.allocator.engine.rules`, one GPU at a time.
    """
    need = Need(request, manner_of(request, policy))
    eligibility = Eligibility(screen_key(loosest(request)))
    for name in snapshot.nodes(request.pool):
        host = snapshot.host(name)
        if host is not None:
            stage, stages = _judge(host, eligibility, need)
            uuids = [device.uuid for device in host.devices or ()] if need.count else []
            yield Fate(name, stage, dict(zip(uuids, stages, strict=True)))


def _judge(host: Host, eligibility: Eligibility, need: Need) -> tuple[int, list[int]]:
    devices = host.devices or ()
    stage = eligibility.node_stage(host)
    if not need.count:
        return stage or need.judge(host, [])[0] >> STAGE_SHIFT, []
    if stage:
        return stage, [stage] * len(devices)
    # Stages count down in filter order: of two filters that refuse a GPU, the larger is the earlier.
    stages = [max(eligibility.kind_stage(GpuKind.of(one, host.node)), eligibility.own_stage(one)) for one in devices]
    stage = _static(stages, need.count)
    if stage:
        return stage, [max(one, stage) for one in stages]
    slots = [slot for slot, one in enumerate(stages) if not one]
    for code, mask in need.sieves:
        fallen = [slot for slot in slots if host.marks[slot] & mask]
        for slot in fallen:
            stages[slot] = code
        slots = [slot for slot in slots if not stages[slot]]
        if fallen and not slots:
            return code, stages
    stage = need.judge(host, slots)[0] >> STAGE_SHIFT
    free = getattr(host, need.compute_column)
    fitting = need.fitting(host, slots)[1]
    for slot in slots:
        if slot not in fitting:
            stages[slot] = COMPUTE if need.portion is None and free[slot] < need.compute else need.amounts[1]
        elif stage != FITS:
            stages[slot] = stage
    return stage, stages


def _static(stages: list[int], count: int) -> int:
    """Return the filter that leaves fewer than ``count`` GPUs standing, or 0."""
    left = len(stages)
    if left < count:
        return GPU_COUNT
    for stage in GPU_FILTERS:
        left -= stages.count(stage)
        if left < count:
            return stage
    return 0
