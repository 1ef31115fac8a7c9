"""``gpubus defrag``: which nodes of a pool could be emptied, where their pods would go, and how its campaign stands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NotFoundError
from deploy.cli.newest import newest_of
from deploy.cli.output import instant, make_console, print_json, show_table

if TYPE_CHECKING:
    from schemas.defrag import Campaign, Defrag

PROTECTED = "critical pods are not disrupted"


def defrag(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Which pool.")],
    *,
    threshold: Annotated[
        int,
        typer.Option("--threshold", min=1, max=100, help="Percent of a node that may be used for it to be emptied."),
    ] = 40,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Say which nodes of a pool could be emptied, and where their pods would go. Nothing is moved.

    Only nodes of which every pod has a place elsewhere, by the pool's own placement mode, are named. Pods of a
    PodDisruptionBudget that allows no eviction now, members of gangs and critical pods stay.

    \b
    Example: gpubus defrag shared --threshold 30 --json | jq -r '.emptied[]'
    """
    plan, campaign = run(_plan(nats, store, pool, threshold))
    if as_json:
        print_json({**msgspec.to_builtins(plan), "campaign": campaign})
        return
    console = make_console()
    if campaign is not None:
        console.print(f"campaign of {instant(campaign.slot)}: {_stands(campaign)}")
    console.print(
        f"pool {pool}: {len(plan.emptied)} of {plan.candidates} nodes that are used for {threshold} % or less could be emptied "
        f"by moving {len(plan.moves)} pods"
    )
    show_table(
        console,
        "in this order",
        ("pod", "from", "to"),
        [(f"{move.namespace}/{move.name}", move.source, move.target) for move in plan.moves],
    )
    show_table(
        console,
        "stay as they are",
        ("node", "because of", "why"),
        [(one.node, one.pod, one.reason) for one in plan.kept],
    )


def _stands(campaign: "Campaign") -> str:
    """Return in words how a campaign stands."""
    if campaign.end:
        return f"{campaign.end}, {campaign.message}"
    return f"node {campaign.node} is being emptied of {len(campaign.evicting)} pods" if campaign.node else "running"


async def _plan(
    nats: list[str] | None, store: Path | None, pool: str, threshold: int
) -> "tuple[Defrag, Campaign | None]":
    from bus import records, subjects
    from bus.streams import STATE
    from consumers.allocator.defrag import plan_defrag
    from deploy.cli.fold import World
    from schemas.defrag import Campaign
    from schemas.pod import Pod
    from schemas.preemption import DisruptionBudget

    async with open_bus(nats, store) as bus:
        world = await World.load(bus)
        pods = await newest_of(bus, "gpubus.state.pod.*.*", Pod)
        budgets = await newest_of(bus, "gpubus.state.disruption.*.*", DisruptionBudget)
        _, campaign = await records.read(bus, STATE, subjects.state("defrag", pool), Campaign)
    requests = {pod.uid: pod.request for pod in pods}
    fixed = {pod.uid: PROTECTED for pod in pods if pod.request.qos == "critical"}
    for budget in budgets:
        if not budget.allowed:
            fixed |= dict.fromkeys(
                budget.pods, f"PodDisruptionBudget {budget.namespace}/{budget.name} allows no eviction now"
            )
    if pool not in world.snapshot.pools():
        known = ", ".join(sorted(world.snapshot.pools())) or "(there is none)"
        raise NotFoundError(f"pool {pool} is not known: name one of {known}")
    plan = plan_defrag(world.snapshot, requests, pool, threshold=threshold, fixed=fixed)
    return plan, campaign
