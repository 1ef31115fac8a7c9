"""``gpubus rollout``: how far updates of a pool's components are, and what people may order."""

import getpass
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import clean, instant, make_console, make_table, print_json, show_fields, show_table
from deploy.cli.rollout_log import decoded, every_step, newest_rollouts

if TYPE_CHECKING:
    from bus.connection import Bus
    from schemas.rollout import Rollout

app = typer.Typer(
    help="""See how far updates of hypervisors, workers and clients are, and steer them.

    \b
    Examples:
      gpubus rollout status
      gpubus rollout history train hypervisor
      gpubus rollout pause train hypervisor
    """,
    rich_markup_mode=None,
)

COMPONENTS: Final = ("hypervisor", "worker", "client")
TRIES: Final = 20
"""Times that an order is given anew because the updater took a step meanwhile."""

PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="The pool.")]
ComponentArgument = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="Which of its parts: hypervisor, worker or client.")
]
Order = Callable[["Rollout", datetime, str], "Rollout"]


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("status")
def status_command(
    pool: Annotated[str | None, typer.Argument(metavar="[POOL]", help="Only this pool.")] = None,
    component: Annotated[str | None, typer.Argument(metavar="[COMPONENT]", help="Only this part of it.")] = None,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show where every rollout stands and why; with POOL and COMPONENT, all about one.

    \b
    Examples:
      gpubus rollout status
      gpubus rollout status train hypervisor
      gpubus rollout status --json | jq '.[] | select(.phase == "halted")'
    """
    if component is not None:
        _check(component)
    found = [record for record in run(newest_rollouts(nats, store)) if pool in (None, record.pool)]
    found = [record for record in found if record.component == (component or record.component)]
    if not found and pool is not None:
        raise NotFoundError(f"no rollout of {component or 'anything'} of pool {pool!r} is known: {_HINT}")
    if as_json:
        print_json(found)
        return
    console = make_console()
    if not found:
        console.print("no rollouts are known: they begin when an updater has seen a pool's components")
    elif pool is not None and component is not None:
        show_fields(console, _fields(found[0]))
    else:
        columns = ("pool", "component", "phase", "updated>", "of>", "template", "since", "why")
        console.print(make_table(console, columns, [_row(record) for record in found]))


_HINT: Final = "`gpubus rollout status` lists them"
_UNREADABLE: Final = "a readable record on the same subject lets it go on"


def _row(record: "Rollout") -> list[object]:
    return [
        record.pool, record.component, record.phase, record.updated, record.total, record.target.hash,
        instant(record.changed_at), record.message or record.reason,
    ]  # fmt: skip


def _fields(record: "Rollout") -> list[tuple[str, object]]:
    from schemas.rollout_template import made_from

    waiting = [one.name for one in record.batch if one.replaced_at is None]
    coming = [one.name for one in record.batch if one.replaced_at is not None]
    return [
        ("pool", record.pool),
        ("component", record.component),
        ("phase", record.phase + (", on the way back" if record.back and record.phase != "rolled-back" else "")),
        ("since", instant(record.changed_at)),
        ("why", record.message or record.reason),
        ("updated", f"{record.updated} of {record.total}"),
        ("batches", record.batches or ""),
        ("to be replaced", " ".join(waiting)),
        ("replaced", " ".join(coming)),
        ("left out", " ".join(record.skipped)),
        ("accepted alerts", ", ".join(record.accepted)),
        ("until", instant(record.due_at) if record.due_at else ""),
        ("template", record.target.hash),
        ("new ones get", "" if made_from(record) == record.target else made_from(record).hash),
        ("before", record.previous.hash if record.previous else ""),
        ("refused", record.rejected),
        ("ordered by", record.by),
    ]


@app.command("history")
def history_command(
    pool: PoolArgument,
    component: ComponentArgument,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show every step that was taken, oldest first.

    \b
    Example:
      gpubus rollout history train hypervisor
    """
    _check(component)
    found, unreadable = run(every_step(pool, component, nats, store))
    if unreadable and not found:
        raise NotFoundError(f"no step of {component} of pool {pool!r} can be read: {_UNREADABLE}")
    if not found:
        raise NotFoundError(f"no rollout of {component} of pool {pool!r} is known: {_HINT}")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            instant(r.changed_at),
            r.number,
            r.step,
            r.phase,
            f"{r.updated}/{r.total}",
            r.target.hash,
            r.message or r.reason,
        )
        for r in found
    ]
    show_table(make_console(), "", ("time", "rollout>", "step", "phase", "updated>", "template", "why"), rows)


def _order_command(name: str, text: str) -> None:
    def command(pool: PoolArgument, component: ComponentArgument, *, nats: NatsOption = None) -> None:
        from consumers.updater import orders

        _check(component)
        record = run(_order(pool, component, getattr(orders, name), nats))
        print(clean(f"{component} of pool {pool}: {record.phase}, {record.updated} of {record.total} updated"))
        if record.step == "resumed" and (record.accepted or record.skipped):
            print(clean(f"  going on in spite of {', '.join((*record.accepted, *record.skipped))}"))

    app.command(name, help=f"{text}\n\n\b\nExample:\n  gpubus rollout {name} train hypervisor")(command)


_order_command("pause", "Begin nothing more; what has been replaced comes up meanwhile.")
_order_command(
    "resume",
    "Go on: after a pause, in spite of the members or alerts that halted it, or with an update that is not automatic.",
)
_order_command("abort", "Leave things as they stand; only another change or a rollback moves them.")
_order_command("rollback", "Bring what has been updated back to the previous template, at once.")


def _check(component: str) -> None:
    if component not in COMPONENTS:
        raise InputError(f"component {component!r} is unknown: use one of {', '.join(COMPONENTS)}")


async def _order(pool: str, component: str, order: Order, nats: list[str] | None) -> "Rollout":
    from bus.errors import ConflictError

    async with open_bus(nats, None) as bus:
        for _ in range(TRIES):
            try:
                return await _try_order(bus, pool, component, order)
            except ConflictError:
                continue
    raise NotFoundError(f"{component} of pool {pool!r} changed {TRIES} times while the order was given: try again")


async def _try_order(bus: "Bus", pool: str, component: str, order: Order) -> "Rollout":
    from secrets import token_hex

    import msgspec

    from bus import ledger
    from bus.codec import encode
    from bus.history import newest
    from bus.streams import LEDGER, STATE
    from bus.subjects import ledger_rollout, state
    from consumers.updater.orders import OrderRefusedError
    from consumers.updater.progress import count
    from schemas.event import Event
    from schemas.rollout import Member, Rollout

    subject = ledger_rollout(pool, component)
    records, _ = await newest(bus, LEDGER, [subject])
    if not records:
        raise NotFoundError(f"no rollout of {component} of pool {pool!r} is known: {_HINT}")
    known = decoded(records, Rollout)
    if not known:
        raise NotFoundError(
            f"{component} of pool {pool!r} cannot be steered while its record cannot be read: {_UNREADABLE}"
        )
    now, txn = datetime.now(UTC), f"order:{token_hex(8)}"
    try:
        ordered = order(known[0], now, _whoami())
    except OrderRefusedError as error:
        raise NotFoundError(str(error)) from error
    runs, _ = await newest(bus, STATE, [f"{state('member', pool, component)}.*"])
    updated, total = count(ordered, decoded(runs, Member))
    ordered = msgspec.structs.replace(ordered, txn=txn, updated=updated, total=total)
    event = Event(
        id=txn, source="/gpubus/cli", type="gpubus.rollout.v1", subject=f"{pool}/{component}", time=now, data=ordered
    )
    await ledger.commit(bus, subject, encode(event), txn=txn, expected=records[0].seq, timeout=10.0)
    return ordered


def _whoami() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
