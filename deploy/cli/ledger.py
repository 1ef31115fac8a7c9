"""``gpubus ledger``: the truth about who holds what, when it has to be made anew."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.connect import NatsOption, run, security, servers
from deploy.cli.errors import InputError

if TYPE_CHECKING:
    from consumers.reconciler.rebuild import Rebuilt

app = typer.Typer(
    help="""Make the ledger anew from what bindings wrote on running pods.

    \b
    Example:
      gpubus ledger rebuild --dry-run
    """,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("rebuild")
def rebuild(
    *,
    nats: NatsOption = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", metavar="PATH", help="Which cluster. [default: KUBECONFIG, or that of the pod we run in]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a ledger that holds something.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = False,
) -> None:
    """Write the ledger that the annotations of bound pods describe: for when the bus was lost altogether.

    Stop the allocators first. Pods whose annotation is not their own are named and left out.

    \b
    Example: gpubus ledger rebuild --nats nats://nats.gpubus.svc:4222
    """
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    found = run(_rebuild(servers(nats), force=force, dry_run=dry_run))
    pods = sum(len(record.allocations) for record in found.records.values())
    for name, reason in found.refused:
        typer.echo(f"left out: pod {name}: {reason}")
    verb = "would be written" if dry_run else "written"
    typer.echo(f"{len(found.records)} records with {pods} pods {verb}, {len(found.refused)} pods left out")


async def _rebuild(urls: list[str], *, force: bool, dry_run: bool) -> "Rebuilt":
    from datetime import UTC, datetime
    from secrets import token_hex

    from bus import codec, ledger, subjects
    from bus.connection import Bus
    from bus.kube.client import Client
    from bus.streams import ensure_streams
    from consumers.reconciler.look import all_pods, read_ledger
    from consumers.reconciler.rebuild import rebuild as describe
    from schemas.event import Event

    async with (
        await Client.connect() as client,
        await Bus.connect(urls, name="gpubus-ledger", security=security()) as bus,
    ):
        await ensure_streams(bus, update=False)
        before = await read_ledger(bus)
        if not force and any(allocations for _, allocations in before.values()):
            raise InputError("the ledger is not empty: see `gpubus state`, and pass --force to replace it all the same")
        pods = [pod async for pod in all_pods(client)]
        held = {node: allocations for node, (_, allocations) in before.items()}
        found = describe(pods, held, txn=f"rebuild-{token_hex(4)}")
        for node, record in found.records.items() if not dry_run else ():
            event = Event(
                id=record.txn,
                source="/gpubus/ledger",
                type="gpubus.ledger.node.v1",
                subject=node,
                time=datetime.now(UTC),
                data=record,
            )
            expected = before[node][0] if node in before else 0
            subject = subjects.ledger_node(node)
            await ledger.commit(bus, subject, codec.encode(event), txn=record.txn, expected=expected)
        return found
