"""``gpubus state``: what there is and how much of it is taken, per pool and node, folded from the bus."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NotFoundError
from deploy.cli.output import gib, make_console, percent, print_json, show_table, tflops, warn
from deploy.cli.when import AtOption, SequenceOption, cut_of

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 130
_AMOUNTS = ("TFLOPS>", "given>", "%>", "VRAM GiB>", "given>", "%>", "pods>")
_SHARES = ("TFLOPS %>", "VRAM %>", "pods>")
"""On a narrow terminal: what is given of all, as shares."""


def state(
    *,
    nodes: Annotated[bool, typer.Option("--nodes", help="List the nodes too.")] = False,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Show one node's GPUs and pods.")] = None,
    at: AtOption = None,
    seq: SequenceOption = None,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show what there is and how much of it is given out, per pool and for the whole cluster.

    TFLOPS and VRAM are what may be given out, oversubscription applied; where that differs from what the GPUs really
    have, the real amount follows in brackets. --json prints everything, each node, GPU and pod included.

    \b
    Examples:
      gpubus state
      gpubus state --nodes
      gpubus state --at 15m
      gpubus state --node gpu-1.rack-2.example.com
      gpubus state --json | jq '.pools[] | {name, waiting}'
    """
    found = run(_state(nats, store, at, seq))
    if node is not None:
        found["nodes"] = [entry for entry in found["nodes"] if entry["name"] == node]
        if not found["nodes"]:
            raise NotFoundError(f"no node {node!r} is known: `gpubus state --nodes` lists them")
    if as_json:
        print_json(found)
        return
    _warn(found)
    console = make_console()
    if node is not None:
        _show_node(console, found["nodes"][0])
        return
    _show_pools(console, found)
    if nodes:
        _show_nodes(console, "Nodes", found["nodes"])


async def _state(nats: list[str] | None, store: Path | None, at: str | None, seq: int | None) -> dict[str, Any]:
    from deploy.cli.fold import World
    from deploy.cli.report import report

    async with open_bus(nats, store) as bus:
        return report(await World.load(bus, await cut_of(bus, at, seq)))


def _warn(found: dict[str, Any]) -> None:
    for entry in found["unreadable"]:
        warn(f"{entry['stream']} {entry['sequence']} on {entry['subject']} is left out: {entry['reason']}")
    unrecorded = [entry["name"] for entry in found["nodes"] if not entry["recorded"]]
    if unrecorded:
        warn(
            f"{len(unrecorded)} nodes have GPUs and no node record ({_examples(unrecorded)}): they take no pods and are in no "
            "total, because no pool selects them or no watcher speaks for their cluster; --nodes lists them"
        )
    frozen = [entry["name"] for entry in found["nodes"] if entry["frozen"]]
    if frozen:
        warn(
            f"{len(frozen)} nodes are frozen because their ledger record cannot be read ({_examples(frozen)}): they take no "
            "pods, and what theirs hold is in no total"
        )
    if found["unplaced"]:
        lost = sorted({entry["node"] for entry in found["unplaced"]})
        warn(
            f"{len(found['unplaced'])} allocations are on {len(lost)} unknown nodes and in no total: {_examples(lost)}"
        )


def _examples(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")  # noqa: PLR2004  three examples, as in decisions


def _amount_columns(console: "Console") -> tuple[str, ...]:
    return _AMOUNTS if console.width >= _WIDE else _SHARES


def _amounts(console: "Console", part: dict[str, Any]) -> list[str]:
    if console.width < _WIDE:
        shares = [
            percent(part[f"granted_{kind}"], part[f"schedulable_{kind}"]) for kind in ("tflops_milli", "vram_bytes")
        ]
        return [*shares, str(part["pods"])]

    def column(kind: str, form: Any) -> list[str]:
        physical, schedulable, granted = (part[f"{which}_{kind}"] for which in ("physical", "schedulable", "granted"))
        shown = form(schedulable) + (f" ({form(physical)})" if physical != schedulable else "")
        return [shown, form(granted), percent(granted, schedulable)]

    return [*column("tflops_milli", tflops), *column("vram_bytes", gib), str(part["pods"])]


def _show_pools(console: "Console", found: dict[str, Any]) -> None:
    columns = ("pool", "placement", "nodes>", "GPUs>", *_amount_columns(console), "waiting>")
    rows = [
        _pool_row(console, pool["name"] or "(no pool)", pool["placement"] or "(not declared)", pool)
        for pool in found["pools"]
    ]
    rows.append(_pool_row(console, "all", "", found["cluster"]))
    show_table(console, "", columns, rows)
    at = found["sequences"]
    console.print(f"\nas of STATE {at['state']} and LEDGER {at['ledger']}")


def _pool_row(console: "Console", name: str, placement: str, part: dict[str, Any]) -> list[object]:
    return [name, placement, part["nodes"], part["gpus"], *_amounts(console, part), part["waiting"]]


def _show_nodes(console: "Console", title: str, nodes: list[dict[str, Any]]) -> None:
    rows = [
        [n["name"], n["pool"], n["status"], n["capacity"]["gpus"], *_amounts(console, n["capacity"])] for n in nodes
    ]
    show_table(console, title, ("node", "pool", "status", "GPUs>", *_amount_columns(console)), rows)


def _show_node(console: "Console", node: dict[str, Any]) -> None:
    _show_nodes(console, "", [node])
    gpus = [
        [
            gpu["index"],
            gpu["uuid"],
            gpu["model"],
            gpu["status"],
            tflops(gpu["schedulable_tflops_milli"]),
            tflops(gpu["free_tflops_milli"]),
            gib(gpu["schedulable_vram_bytes"]),
            gib(gpu["free_vram_bytes"]),
        ]
        for gpu in node["gpus"]
    ]
    show_table(console, "GPUs", ("gpu>", "UUID", "model", "status", "TFLOPS>", "free>", "VRAM GiB>", "free>"), gpus)
    pods = [
        [
            f"{pod['namespace']}/{pod['name']}",
            ",".join(str(gpu["index"]) for gpu in pod.get("gpus", ())) or "-",
            tflops(sum(gpu["tflops_milli"] for gpu in pod.get("gpus", ()))),
            gib(sum(gpu["vram_bytes"] for gpu in pod.get("gpus", ()))),
            tflops(pod.get("cpu_milli", 0)),
            gib(pod.get("memory_bytes", 0)),
            pod.get("qos", "medium"),
            pod["since"],
        ]
        for pod in node["pods"]
    ]
    columns = ("pod", "GPUs", "TFLOPS>", "VRAM GiB>", "CPU>", "memory GiB>", "QoS", "since LEDGER>")
    show_table(console, "Pods", columns, pods)
