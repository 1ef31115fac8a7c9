"""``gpubus demo``: see the product do its job in under a minute, with no cluster and no GPU."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from deploy.cli.connect import JsonOption, run
from deploy.cli.errors import INTERRUPTED, NEGATIVE, InputError
from deploy.cli.run import MOST_ALLOCATORS, MOST_NODES, MOST_PODS, MOST_RATE, check_size, stop_on_signals

if TYPE_CHECKING:
    from deploy.local.demo import Demo, Report, Settings
    from producers.simulator.trace import Trace
    from schemas.cluster import PlacementMode


def demo(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="DIR", help="Replay an openb CSV pair from DIR. [default: a generated cluster]"
        ),
    ] = None,
    pods: Annotated[int | None, typer.Option("--pods", help="Pods. [default: 2000, or all of the trace]")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes. [default: 200, or all of the trace]")] = None,
    allocators: Annotated[int, typer.Option("--allocators", help="Allocator processes.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", help="NATS servers: 1, or 3 in a loopback cluster.")] = 1,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill an allocator with SIGKILL half way.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated cluster.")] = 1,
    rate: Annotated[float, typer.Option("--rate", help="Pods per second; 0 for as fast as they are decided.")] = 500.0,
    placement: Annotated[
        str, typer.Option("--placement", metavar="MODE", help="How pods are placed, as a pool says it.")
    ] = "NodeCompactGPULowLoad",
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the bus in DIR. [default: a directory in the system's temp]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a simulated cluster end to end: pods arrive, are placed, run and end, and an allocator is killed.

    \b
    Examples:
      gpubus demo
      gpubus demo --pods 8000 --nodes 1200 --allocators 4 --rate 0
      gpubus demo --trace openb/ --json

    Exit code 0 when no pod was lost and nothing was given twice, 1 otherwise.
    """
    check_size("--allocators", allocators, 1, MOST_ALLOCATORS)
    check_size("--rate", rate, 0, MOST_RATE)
    check_size("--pods", 1 if pods is None else pods, 1, MOST_PODS)
    check_size("--nodes", 1 if nodes is None else nodes, 1, MOST_NODES)
    if replicas not in (1, 3):
        raise InputError(f"--replicas is {replicas}: use 1 or 3")
    mode = _mode(placement)
    cluster = _trace(trace, nodes, pods, seed)
    # Imported after the command line and the files are known to be good.
    from deploy.local.demo import Settings
    from deploy.local.store import default_directory, fresh_directory

    store = fresh_directory(keep or default_directory())
    settings = Settings(
        store=store, allocators=allocators, replicas=replicas, kill=kill, seed=seed, rate=rate, placement=mode
    )
    report, played = run(_play(settings, cluster, quiet=as_json))
    if played.interrupted:
        sys.stderr.write(f"gpubus: interrupted; the bus is kept in {store}\n")
        raise typer.Exit(INTERRUPTED)
    if as_json:
        from deploy.cli.output import print_json

        print_json(report)
    else:
        _summary(report, played, store)
    if report.pods_lost or report.double_allocations or not report.invariants_ok:
        raise typer.Exit(NEGATIVE)


def _mode(word: str) -> "PlacementMode":
    from schemas.cluster import PlacementMode

    for mode in get_args(PlacementMode):
        if mode == word:
            return mode  # type: ignore[no-any-return]
    raise InputError(f"--placement is {word}: use one of {', '.join(get_args(PlacementMode))}")


def _trace(directory: Path | None, nodes: int | None, pods: int | None, seed: int) -> "Trace":
    from producers.simulator.generator import generate
    from producers.simulator.trace import Trace, read_trace

    if directory is None:
        return generate(nodes or 200, pods or 2000, seed)
    whole = read_trace(directory)
    return Trace(nodes=whole.nodes[:nodes], pods=sorted(whole.pods, key=lambda pod: pod.arrives_s)[:pods])


async def _play(settings: "Settings", trace: "Trace", *, quiet: bool) -> tuple["Report", "Demo"]:
    from deploy.cli.live import Live
    from deploy.local.demo import Demo

    with Live(enabled=not quiet, pods=len(trace.pods)) as live:
        played = Demo(settings, trace, live.show)
        return await played.run(stop_on_signals()), played


def _summary(report: "Report", played: "Demo", store: Path) -> None:
    from deploy.cli.output import make_console

    print_ = make_console().print
    good = not report.pods_lost and not report.double_allocations and report.invariants_ok
    print_(
        f"\n{report.pods_offered} pods offered to {report.nodes} nodes with {report.gpus} GPUs: "
        f"{report.pods_allocated} allocated, {report.pods_unschedulable} fit nowhere, {report.pods_lost} lost; "
        f"{report.pods_released} ended and gave back what they held."
    )
    print_(
        f"{report.gpu_allocation_percent:.1f} % of all GPU compute is in use. {report.decisions_per_second:.0f} decisions/s by "
        f"{report.allocators} allocators, p50 {report.latency_ms.p50:.1f} ms, p99 {report.latency_ms.p99:.1f} ms; "
        f"{report.conflicts} placements overtaken by another allocator and decided again."
    )
    verdict = "no GPU was given twice, no invariant broken" if good else "SOMETHING IS WRONG"
    print_(f"Allocators killed: {report.killed}. Audit of the whole ledger: {verdict}.")
    for violation in (played.findings.violations if played.findings is not None else [])[:5]:
        print_(f"  ledger {violation.seq}, {violation.where}: {violation.rule}: {violation.detail}")
    command = _own_command()
    print_("\nThe log is kept. Ask it:")
    for line in _suggestions(played, store):
        print(f"  {command} {line}")


def _suggestions(played: "Demo", store: Path) -> list[str]:
    from producers.simulator.build import NAMESPACE, pod_uid

    found = played.findings
    names = {pod_uid(pod.name): pod.name for pod in played.trace.pods}
    lines = []
    if found is not None:
        for uids in (found.refused - found.placed, found.placed):
            known = sorted(names[uid] for uid in uids if uid in names)
            lines += [f"why {NAMESPACE}/{known[0]} --store {store}"] if known else []
    return [*lines, f"state --store {store}", f"events --store {store} --last 20 --no-follow", f"check --store {store}"]


def _own_command() -> str:
    """Return how this program was called, so that the lines printed can be pasted."""
    called = Path(sys.argv[0])
    if called.name != "gpubus":
        return "gpubus"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)
