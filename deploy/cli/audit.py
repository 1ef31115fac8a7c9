"""``gpubus audit``: is the log as it was written?"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE, InputError
from deploy.cli.transfer import REDACTED

if TYPE_CHECKING:
    from deploy.replay.evidence import Evidence

_DIGEST: Final = re.compile(r"[0-9a-f]{16,128}")

app = typer.Typer(
    help="""Find out whether the log is as it was written.

    \b
    Example:
      gpubus audit verify
    """,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("verify")
def verify(
    *,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="DIGEST", help="Also check that the newest messages are still these."),
    ] = None,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Check the hash chains of the ledger and of the allocators' journals, and name the first break.

    Every record names the digest of the one it replaces, so what is changed later shows at its successor. The newest have
    none: note the head that is printed, and give it back with --head to the same log, such as an exported one. A decision
    that is announced and in the ledger must be the same in both, and one that takes a place must be in the ledger.

    This is half of the proof: run `gpubus replay --verify` too. It finds refusals that were changed, whatever should have been
    announced and is not, envelopes that do not agree with their decisions, and allocations that do not add up. What STATE
    said is in no chain: a change of it shows there only if a decision comes out otherwise.

    Exit code 1 when a chain is broken or the head is another one.

    \b
    Example: gpubus audit verify --store incident
    """
    if store is not None and (store / REDACTED).exists():
        raise InputError(
            f"--store {store} holds a redacted log, whose digests were made anew and prove nothing: "
            "`gpubus replay --verify` can check it"
        )
    if head is not None and not _DIGEST.fullmatch(head):
        raise InputError(f"--head {head!r} is no digest: write the one that an earlier run printed")
    found = run(_walk(nats, store))
    other = head is not None and head != found.head
    if as_json:
        from deploy.cli.output import print_json

        print_json(found)
    else:
        from deploy.cli.output import clean

        print(
            f"{found.checked} messages follow the ones before them but for {found.broken}; {found.announced} decisions compared"
        )
        print(f"head {found.head}" + (f", and not {head}" if other else ""))
        for entry in found.breaks:
            print(clean(f"  {entry.stream} {entry.sequence}, {entry.subject}: {entry.detail}"))
    if found.broken or other:
        raise typer.Exit(NEGATIVE)


async def _walk(nats: list[str] | None, store: Path | None) -> "Evidence":
    from deploy.replay.evidence import walk

    async with open_bus(nats, store) as bus:
        return await walk(bus)
