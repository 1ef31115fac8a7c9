"""The decision itself: filters, scores, GPU choice, tie-break, and the explanation of all four."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from consumers.allocator.engine.fit import Fit
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.probe import Probe
from consumers.allocator.engine.promises import unsupported
from consumers.allocator.engine.rules import ENGINE_VERSION, STAGE_CODES
from consumers.allocator.engine.snapshot import Snapshot
from consumers.allocator.engine.table import Table
from schemas import reasons
from schemas.decision import Basis, Decision, FilterReport
from schemas.pod import GpuRequest

CANDIDATES: Final = 3
NOWHERE: Final = -1

_NO_BASIS: Final = Basis(state=0, ledger=0, ordinal=0)


def decide(snapshot: Snapshot, request: GpuRequest, policy: Policy, chosen: str = "") -> Decision:
    """Find the place for one pod, and say why there, or why nowhere.

    Pure: equal snapshots, requests and policies give equal decisions, whatever was decided before. The snapshot is not
    changed; the caller adds the allocation once it has committed it, or optimistically before.

    Rules: the filters of :mod:`~consumers.allocator.engine.rules`, the modes and the tie-break of
    :class:`~consumers.allocator.engine.policy.Policy`.

    Args:
        snapshot: What is known.
        request: What the pod asks for; only nodes of its pool count.
        policy: How to choose among the nodes that fit.
        chosen: The node that somebody else has chosen: the pod goes there or nowhere, and the policy chooses its GPUs.

    Returns:
        A decision with the outcome ``allocated`` or ``unschedulable``. ``namespace``, ``name``, ``pod_uid``, ``allocator``,
        ``basis`` and ``duration_us`` are blank, as the engine knows neither the pod nor the clock: fill them with
        ``msgspec.structs.replace``. ``filters`` lists the filters that removed something, in order; ``candidates`` the best
        three nodes, best first, and last the chosen one if it is none of them.
    """
    if request.pool not in snapshot.pools():
        return _unschedulable(request, policy, reasons.POOL_UNKNOWN, f"pool {request.pool!r} is not known")
    if field := unsupported(request):
        asked = f"{field}={getattr(request, field)!r}"
        return _unschedulable(request, policy, reasons.UNSUPPORTED, f"{asked} cannot be promised by this version")
    table = snapshot.table(request.pool)
    if table is None:
        return _unschedulable(request, policy, reasons.POOL_EMPTY, f"pool {request.pool!r} has no nodes")
    fit = snapshot.fit(table, request, policy)
    filters = fit.reports()
    best = fit.best(CANDIDATES)
    row = best[0] if best else NOWHERE
    if chosen:
        row, refusal = _stand(snapshot, table, fit, chosen)
        if refusal:
            message = f"{chosen}, which kube-scheduler has chosen, does not fit: {refusal}"
            return _unschedulable(request, policy, refusal, message, filters)
    if row == NOWHERE:
        refused = ", ".join(f"{report.nodes} {report.reason}" for report in filters if report.nodes)
        dominant = next(report.reason for report in reversed(filters) if report.nodes)
        message = f"0 of {table.live} nodes fit: {refused}"
        return _unschedulable(request, policy, dominant, message, filters)
    if chosen and row not in best:
        best = [*best, row]
    candidates = fit.candidates(best)
    host = table.hosts[row]
    assert host is not None  # noqa: S101
    winner = candidates[best.index(row)]
    gpus, containers = fit.grants(row, host)
    choice = "kube-scheduler's choice" if chosen else f"the best{_where(policy)}"
    return Decision(
        outcome="allocated",
        namespace="",
        name="",
        pod_uid="",
        pool=request.pool,
        allocator="",
        basis=_NO_BASIS,
        node=winner.node,
        gpus=gpus,
        containers=containers,
        message=f"{fit.fitting_nodes} of {table.live} nodes fit, {winner.node} is {choice}: score {winner.score}",
        policy=policy.name,
        policy_hash=policy.hash,
        engine=ENGINE_VERSION,
        filters=filters,
        candidates=candidates,
    )


def offers(
    snapshot: Snapshot, request: GpuRequest, policy: Policy, names: Sequence[str], count: int
) -> tuple[dict[str, list[str]], list[str]]:
    """Judge a request on some nodes only, as :func:`decide` would.

    Returns:
        Reason codes with the nodes that they refuse, in the order given; and of the others the best ``count``, best first.
    """
    refused: dict[str, list[str]] = {}
    if unsupported(request):
        return {reasons.UNSUPPORTED: list(names)}, []
    table = snapshot.table(request.pool) if request.pool in snapshot.pools() else None
    if table is None:
        return {reasons.POOL_EMPTY if request.pool in snapshot.pools() else reasons.POOL_UNKNOWN: list(names)}, []
    rows = []
    mine = []
    for name in names:
        row = _row(snapshot, table, name)
        if row == NOWHERE:
            refused.setdefault(reasons.NOT_IN_POOL, []).append(name)
        else:
            rows.append(row)
            mine.append(name)
    if not rows:
        return refused, []
    fit = snapshot.fit(table, request, policy)
    among = np.array(rows, dtype=np.intp)
    stages = fit.stages(among)
    for place in stages.nonzero()[0].tolist():
        refused.setdefault(STAGE_CODES[stages.item(place)], []).append(mine[place])
    return refused, [table.names[row] for row in fit.best(count, among)]


def _row(snapshot: Snapshot, table: Table, name: str) -> int:
    """Return the row of a node in the table of its pool, ``NOWHERE`` if it is not in there."""
    host = snapshot.host(name)
    row = host.row if host is not None else NOWHERE
    return row if 0 <= row < len(table.hosts) and table.hosts[row] is host else NOWHERE


def _stand(snapshot: Snapshot, table: Table, fit: Fit, name: str) -> tuple[int, str]:
    """Return the row of a node and the reason that refuses the request there, empty if none does."""
    row = _row(snapshot, table, name)
    if row == NOWHERE:
        return row, reasons.NOT_IN_POOL
    stage = fit.stages(np.array([row], dtype=np.intp)).item(0)
    return row, STAGE_CODES[stage] if stage else ""


def _where(policy: Policy) -> str:
    """Say among which nodes the best was looked for first."""
    return f" of the part that this allocator prefers ({policy.part + 1} of {policy.parts})" if policy.parts > 1 else ""


def fits_on(snapshot: Snapshot, request: GpuRequest, node: str, policy: Policy | None = None) -> bool:
    """Return whether a request would fit one node as it is now, without looking at any other.

    Cheap enough to ask for every waiting pod when a node gains capacity. Agrees with :func:`decide` under the same policy; by
    default under that of the pool. Of a policy only what it says for pods that say nothing themselves makes a difference.
    """
    host = snapshot.host(node)
    if host is None or host.node is None or host.node.pool != request.pool or request.pool not in snapshot.pools():
        return False
    if unsupported(request):
        return False
    probe = Probe(request, policy or snapshot.pools()[request.pool])
    standing = probe.standing(host)
    return standing is not None and probe.fits(host, standing)


def _unschedulable(
    request: GpuRequest, policy: Policy, reason: str, message: str, filters: tuple[FilterReport, ...] = ()
) -> Decision:
    return Decision(
        outcome="unschedulable",
        namespace="",
        name="",
        pod_uid="",
        pool=request.pool,
        allocator="",
        basis=_NO_BASIS,
        reason=reason,
        message=message,
        help=reasons.CODES[reason].help,
        policy=policy.name,
        policy_hash=policy.hash,
        engine=ENGINE_VERSION,
        filters=filters,
    )
