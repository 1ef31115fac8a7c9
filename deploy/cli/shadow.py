"""``gpubus run shadow`` and ``gpubus shadow report``: other rules, tried on what happens now, with nothing bound."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli import run as roles
from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run, servers
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.run import MetricsPortOption, ReplicasOption, check_replicas, run_process

if TYPE_CHECKING:
    from schemas.shadow import ShadowReport

app = typer.Typer(
    help="""See what would be if other rules were in force.

    \b
    Examples:
      gpubus run shadow --policy PackingValue
      gpubus shadow report
    """,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@roles.app.command("shadow")
def shadow(
    *,
    policy: Annotated[str | None, typer.Option("--policy", metavar="MODE", help="Another placement mode.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another capacity, such as tflopsOversellRatio=300."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the shadow, in subjects and reports.")] = "shadow",
    nats: NatsOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
) -> None:
    """Decide by other rules about the pods that come, and say so on gpubus.shadow.> alone: nothing is bound.

    It begins with the cluster as it stands. One process for each name.

    \b
    Example: gpubus run shadow --policy PackingValue --nats nats://nats.gpubus.svc:4222
    """
    from deploy.cli.replay import rules_of

    check_replicas(replicas)
    (rules, *more) = rules_of([policy] if policy else [], settings or [])
    if more or not (policy or settings):
        raise InputError("a shadow decides by one other set of rules: give --policy MODE, --set KEY=VALUE, or both")

    async def play(bus: Any, name: str, stop: Any, ready: Any) -> None:
        from consumers.allocator.shadow.service import Shadow
        from deploy.local.exposition import exposed

        role = Shadow(bus, name, rules)
        with exposed("shadow", role.statistics):
            await role.run(stop, ready=ready)

    run(run_process(play, name, servers(nats), replicas, exit_with_stdin=exit_with_stdin, metrics=metrics))


@app.command("report")
def report(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which shadow. [default: all]")] = None,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Compare each shadow with what happened in truth: pods placed elsewhere, how full it is, how fragmented.

    \b
    Example: gpubus shadow report --json
    """
    found = run(_read(nats, store))
    chosen = [one for one in found if name in (None, one.shadow)]
    if not chosen:
        known = f"; known are {', '.join(one.shadow for one in found)}" if found else ""
        raise NotFoundError(
            f"no shadow {f'{name!r} ' if name else ''}has told anything{known}: `gpubus run shadow` starts one"
        )
    if as_json:
        from deploy.cli.output import print_json

        print_json(chosen)
        return
    for one in chosen:
        _show(one)


async def _read(nats: list[str] | None, store: Path | None) -> "list[ShadowReport]":
    from bus.codec import decode_as
    from bus.errors import UndecodableError
    from bus.history import newest
    from bus.streams import SHADOW
    from deploy.cli.output import warn
    from schemas.shadow import ShadowReport

    async with open_bus(nats, store) as bus:
        records, _ = await newest(bus, SHADOW, ["gpubus.shadow.report.*"])
    found = []
    for record in records:
        try:
            found.append(decode_as(ShadowReport, record.payload).data)
        except UndecodableError as error:
            warn(f"SHADOW {record.seq} cannot be read: {error.reason}")
    return sorted(found, key=lambda one: one.shadow)


def _show(one: "ShadowReport") -> None:
    from deploy.cli.output import clean, instant, make_console, show_fields, show_table

    console = make_console()
    console.print(clean(f"{one.shadow}: {one.rules}"), style="bold")
    seconds = (one.at - one.since).total_seconds()
    rows = [
        [title, s.pods, s.waiting, f"{s.tflops_percent:.2f}", f"{s.vram_percent:.2f}", f"{s.stranded_percent:.2f}"]
        for title, s in (("as it is", one.real), ("in the shadow", one.state))
    ]
    show_table(console, "", ("", "pods>", "waiting>", "compute %>", "VRAM %>", "stranded %>"), rows)
    show_fields(
        console,
        [
            ("decided", f"{one.decided}, {one.placed} with a place, in {seconds:.0f} s up to {instant(one.at)}"),
            ("same node", one.same),
            ("elsewhere", one.elsewhere),
            ("only there", f"{one.only_shadow} in the shadow, {one.only_real} in truth"),
        ],
    )
    for example in one.examples:
        console.print(clean(f"    {example}"))
