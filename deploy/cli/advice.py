"""``gpubus advice``: what workloads are advised to ask for, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.newest import newest_of
from deploy.cli.output import gib, instant, make_console, make_table, print_json, tflops

if TYPE_CHECKING:
    from schemas.dialects.tf_defaults import GpuAmounts
    from schemas.scaling import WorkloadUse

COLUMNS = ("workload", "by", "request>", "limit>", "in use>", "samples>", "known until", "carried out", "reason")


def advice(
    workload: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE/WORKLOAD]", help="Only this workload.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show what workloads are advised to ask for, per GPU: TFLOPS or percent of compute, and GiB of VRAM.

    A workload says in `spec.autoScalingConfig` what its requests are to follow: use, the clock, or an external scaler.

    \b
    Example: gpubus advice ml/bert --json | jq .advice.resources
    """
    if workload is not None and (workload.count("/") != 1 or not all(workload.split("/"))):
        raise InputError(f"{workload!r} is no workload: write NAMESPACE/WORKLOAD, such as ml/bert")
    found = run(_read(nats, store, workload))
    if as_json:
        print_json(found if workload is None else found[0])
        return
    console = make_console()
    if not found:
        console.print("no workload has requests that follow anything; `gpubus run scaler` looks at those that do")
        return
    console.print(make_table(console, COLUMNS, [_row(use) for use in found]))


async def _read(nats: list[str] | None, store: Path | None, workload: str | None) -> list["WorkloadUse"]:
    from bus import subjects
    from schemas.scaling import WorkloadUse

    wanted = "gpubus.state.use.*.*" if workload is None else subjects.state("use", *workload.split("/"))
    async with open_bus(nats, store) as bus:
        found = await newest_of(bus, wanted, WorkloadUse)
    if workload is not None and not found:
        raise NotFoundError(
            f"nothing is known of workload {workload}: its spec.autoScalingConfig must say what its requests follow, "
            "and `gpubus run scaler` must run"
        )
    return sorted(found, key=lambda use: (use.namespace, use.workload))


def _row(use: "WorkloadUse") -> tuple[object, ...]:
    advised = use.advice
    return (
        f"{use.namespace}/{use.workload}",
        f"cron {advised.rule}" if advised.rule else advised.source or "-",
        amounts(advised.resources.requests),
        amounts(advised.resources.limits),
        amounts(use.held),
        use.samples,
        instant(use.until),
        _carried(use),
        advised.reason,
    )


def _carried(use: "WorkloadUse") -> str:
    return "; ".join(filter(None, [f"{use.applied} workers" if use.applied else "", use.problem])) or "-"


def amounts(stated: "GpuAmounts") -> str:
    """Return amounts per GPU for people; a dash where none is stated."""
    parts = [
        f"{tflops(stated.tflops_milli)} TFLOPS" if stated.tflops_milli else "",
        f"{stated.compute_milli / 10:g} %" if stated.compute_milli else "",
        f"{gib(stated.vram_bytes)} GiB" if stated.vram_bytes else "",
    ]
    return ", ".join(filter(None, parts)) or "-"
