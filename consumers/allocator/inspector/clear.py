"""What would become of a pod, decided as allocators decide and explained filter by filter. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from consumers.allocator.choice import choose
from consumers.allocator.engine.rules import FITS, STAGE_CODES
from consumers.allocator.engine.tracing import Fate, trace
from consumers.allocator.inspector.listings import sequences
from consumers.allocator.inspector.view import View
from schemas import reasons
from schemas.decision import Basis
from schemas.pod import Schedule
from schemas.views import Lost, Simulation

NAMES: Final = 1000
"""Names listed of each filter's nodes and GPUs; the numbers beside them count all."""


def simulate(view: View, pod: Schedule, warnings: tuple[str, ...]) -> Simulation:
    """Return what would become of a pod that came now; ``warnings`` are what admission would tell its user."""
    request, at = pod.request, sequences(view)
    policy = view.policy(request.pool)
    decision, _ = choose(view.snapshot, view.quotas, pod, policy)
    # A pool that is not known, or what its quota refuses, has met no filter.
    fates = trace(view.snapshot, request, policy) if decision.node or decision.filters else ()
    if request.gang is not None:
        warnings += (f"the pod is looked at alone, and its gang needs {request.gang.min_members} members that all fit",)
    return Simulation(
        fits=bool(decision.node),
        request=request,
        warnings=warnings,
        decision=msgspec.structs.replace(
            decision,
            namespace=pod.namespace,
            name=pod.name,
            allocator="inspector",
            basis=Basis(state=at.state, ledger=at.ledger, ordinal=0),
        ),
        lost=tuple(lost(fates)),
        sequences=at,
    )


def lost(fates: Iterable[Fate]) -> Iterator[Lost]:
    """Yield what each filter refused, in filter order, without those that refused nothing."""
    nodes: dict[int, list[str]] = {}
    gpus: dict[int, list[str]] = {}
    for fate in fates:
        if fate.stage != FITS:
            nodes.setdefault(fate.stage, []).append(fate.node)
        for uuid, stage in fate.gpus.items():
            if stage != FITS:
                gpus.setdefault(stage, []).append(uuid)
    for stage in sorted({*nodes, *gpus}, reverse=True):
        reason = reasons.CODES[STAGE_CODES[stage]]
        here, cards = nodes.get(stage, []), gpus.get(stage, [])
        yield Lost(
            reason=reason.code,
            meaning=reason.meaning,
            help=reason.help,
            node_count=len(here),
            gpu_count=len(cards),
            nodes=tuple(islice(here, NAMES)),
            gpus=tuple(islice(cards, NAMES)),
        )
