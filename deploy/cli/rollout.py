"""``gpubus rollout``: how far updates of a pool's components are, and what people may order."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import clean, instant, make_console, make_table, print_json, show_fields, show_table
from deploy.cli.rollout_log import HINT, every_step, newest_rollouts
from deploy.cli.rollout_order import begin_anew, give

if TYPE_CHECKING:
    from deploy.cli.rollout_log import Unreadable
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

PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="The pool.")]
ComponentArgument = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="Which of its parts: hypervisor, worker or client.")
]


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
        raise NotFoundError(f"no rollout of {component or 'anything'} of pool {pool!r} is known: {HINT}")
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


def _row(record: "Rollout | Unreadable") -> list[object]:
    from schemas.rollout import Rollout

    if not isinstance(record, Rollout):
        return [record.pool, record.component, record.phase, "", "", "", instant(record.changed_at), record.message]
    return [
        record.pool, record.component, record.phase, record.updated, record.total, record.target.hash,
        instant(record.changed_at), record.message or record.reason,
    ]  # fmt: skip


def _fields(record: "Rollout | Unreadable") -> list[tuple[str, object]]:
    from schemas.rollout import Rollout
    from schemas.rollout_template import made_from

    if not isinstance(record, Rollout):
        known = ("pool", record.pool), ("component", record.component), ("phase", record.phase)
        return [*known, ("since", instant(record.changed_at)), ("why", record.message)]
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
        (
            "still down",
            " ".join(sorted({one.name for one in record.down if record.component != "client"} | {*record.short})),
        ),
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
    from consumers.updater.view import mend

    _check(component)
    found, unreadable = run(every_step(pool, component, nats, store))
    if unreadable and not found:
        raise NotFoundError(f"no step of {component} of pool {pool!r} can be read: {mend(pool, component)}")
    if not found:
        raise NotFoundError(f"no rollout of {component} of pool {pool!r} is known: {HINT}")
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
        _check(component)
        record = run(give((pool, component), name, nats))
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


@app.command("reset")
def reset_command(pool: PoolArgument, component: ComponentArgument, *, nats: NatsOption = None) -> None:
    """Begin anew where the record cannot be read: from the last one that can, and paused, so that nothing is updated yet.

    \b
    Example:
      gpubus rollout reset train hypervisor
    """
    _check(component)
    record = run(begin_anew((pool, component), nats))
    print(clean(f"{component} of pool {pool}: {record.phase}, {record.updated} of {record.total} updated"))
    print(clean(f"  {record.message}"))


def _check(component: str) -> None:
    if component not in COMPONENTS:
        raise InputError(f"component {component!r} is unknown: use one of {', '.join(COMPONENTS)}")
