"""``gpubus diff``: what has changed between two moments."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.output import gib, make_console, print_json, show_fields, show_table, tflops
from deploy.cli.when import cut_of, split_moment

if TYPE_CHECKING:
    from rich.console import Console

NOW = "now"
_HELP = "A time such as 2026-11-29T14:03Z, an age such as 15m, or a sequence of the ledger."


def diff(
    before: Annotated[str, typer.Argument(metavar="FROM", help=_HELP)],
    after: Annotated[str, typer.Argument(metavar="TO", help="Likewise, or `now`.")] = NOW,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show what has changed between two moments: nodes, GPUs, pods placed, gone and moved, and who waits.

    \b
    Examples:
      gpubus diff 15m
      gpubus diff 2026-11-29T14:03Z 2026-11-29T14:10Z
      gpubus diff 4711 4720 --json
    """
    found = run(_diff(before, after, nats, store))
    if as_json:
        print_json(found)
    else:
        _show(make_console(), found)


async def _diff(before: str, after: str, nats: list[str] | None, store: Path | None) -> dict[str, Any]:
    from deploy.cli.fold import World
    from deploy.cli.report import report
    from deploy.replay.difference import difference

    async with open_bus(nats, store) as bus:
        cuts = [await cut_of(bus, *split_moment(text)) if text != NOW else None for text in (before, after)]
        first, second = [report(await World.load(bus, cut)) for cut in cuts]
    return difference(first, second)


def _show(console: "Console", found: dict[str, Any]) -> None:
    old, new = found["from"], found["to"]
    console.print(
        f"from STATE {old['state']} and LEDGER {old['ledger']} to STATE {new['state']} and LEDGER {new['ledger']}",
        style="bold",
    )
    forms: dict[str, Callable[[int], str]] = {
        "granted_tflops_milli": tflops,
        "granted_vram_bytes": gib,
        "pods": str,
        "waiting": str,
    }
    names = {"granted_tflops_milli": "TFLOPS given", "granted_vram_bytes": "VRAM given, GiB"}
    fields: list[tuple[str, object]] = []
    for field, form in forms.items():
        one, other = found["cluster"][field]["from"], found["cluster"][field]["to"]
        fields.append((names.get(field, field), form(one) if one == other else f"{form(one)} → {form(other)}"))
    show_fields(console, fields)
    nodes = [(name, "", "gone") for name in found["nodes_gone"]] + [(name, "", "new") for name in found["nodes_new"]]
    nodes += [(node["name"], node["from"], node["to"]) for node in found["nodes_changed"]]
    show_table(console, "Nodes", ("node", "was", "is"), nodes)
    gpus = [(gpu["node"], gpu["uuid"], gpu["from"], gpu["to"]) for gpu in found["gpus_changed"]]
    show_table(console, "GPUs", ("node", "UUID", "was", "is"), gpus)
    pods = [
        (_pod(pod), what, pod.get("from", ""), pod["node"])
        for what in ("placed", "gone", "moved")
        for pod in found[what]
    ]
    show_table(console, "Pods", ("pod", "what", "from", "node"), pods)
    waiting = [(_pod(pod), "began to wait", pod["reason"]) for pod in found["began_to_wait"]]
    waiting += [(_pod(pod), "waits no more", "") for pod in found["wait_no_more"]]
    show_table(console, "Waiting", ("pod", "what", "reason"), waiting)


def _pod(pod: dict[str, Any]) -> str:
    return f"{pod['namespace']}/{pod['name']}"
