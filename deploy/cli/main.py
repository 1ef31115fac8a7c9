"""The ``gpubus`` command: puts the subcommands together and turns what goes wrong into one line and an exit code.

Each subcommand lives in a module of its own, which imports what is heavy inside the command: ``gpubus --help`` and a
mistyped option answer at once.
"""

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from deploy.cli import admission as _admission  # noqa: F401  adds its commands to those of `run`
from deploy.cli import advice as _advice
from deploy.cli import agent as _agent  # noqa: F401  likewise
from deploy.cli import alert_trials as _alert_trials  # noqa: F401  adds its commands to those of `alerts`
from deploy.cli import alerts, check, dead, demo, events, ledger, rollout, schema, state, why
from deploy.cli import audit as _audit
from deploy.cli import capacity as _capacity
from deploy.cli import certificates as _certificates
from deploy.cli import cluster as _cluster  # noqa: F401  likewise
from deploy.cli import defrag as _defrag
from deploy.cli import diff as _diff
from deploy.cli import doctor as _doctor
from deploy.cli import drift as _drift
from deploy.cli import group as _group  # noqa: F401  likewise
from deploy.cli import plan as _plan
from deploy.cli import replay as replaying
from deploy.cli import run as roles
from deploy.cli import runbooks as _runbooks  # noqa: F401  adds its command to those of `alerts`
from deploy.cli import shadow as _shadow
from deploy.cli import simulate as _simulate
from deploy.cli import transfer as _transfer
from deploy.cli.errors import BUG, INTERRUPTED, UNHEARD, explain

HELP = """Share the GPUs of a Kubernetes cluster, and see why each pod got what it got.

\b
New here? This shows the whole thing at work in under a minute, without a cluster or a GPU:
  gpubus demo

\b
Three commands show what goes on:
  gpubus events --last 20      what is being said on the bus
  gpubus state                 what there is, and how much of it is taken
  gpubus why NAMESPACE/POD     why a pod runs where it does, or why it waits

\b
They read a bus at nats://127.0.0.1:4222, the one that --nats URL names, or a stopped one's files with --store DIR.
"""

app = typer.Typer(
    name="gpubus",
    help=HELP,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug shows a plain traceback, which can be pasted into a report
    rich_markup_mode=None,  # plain help loads faster and pipes well
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log more to stderr; -vv for all.", show_default=False)
    ] = 0,
) -> None:
    """Prepare what all commands share."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(level)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("demo")(demo.demo)
app.command("up")(roles.up)
app.add_typer(roles.app, name="run")
app.command("events")(events.events)
app.command("state")(state.state)
app.command("why")(why.why)
app.command("check")(check.check)
app.command("replay")(replaying.replay)
app.command("drift")(_drift.drift)
app.command("diff")(_diff.diff)
app.command("simulate")(_simulate.simulate)
app.command("plan")(_plan.plan)
app.command("capacity")(_capacity.capacity)
app.command("defrag")(_defrag.defrag)
app.command("advice")(_advice.advice)
app.command("export")(_transfer.export_command)
app.command("import")(_transfer.import_command)
app.add_typer(rollout.app, name="rollout")
app.add_typer(alerts.app, name="alerts")
app.add_typer(_audit.app, name="audit")
app.add_typer(_shadow.app, name="shadow")
app.add_typer(dead.app, name="dead")
app.add_typer(ledger.app, name="ledger")
app.add_typer(schema.app, name="schema")
app.command("doctor")(_doctor.doctor)
app.command("issue-certificates")(_certificates.issue_certificates)


def _open_standard_streams() -> None:
    """Open what the caller closed (``>&-``): the next file or socket would take its number, and libuv aborts over that."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _unheard() -> int:
    """Whoever read the answer has gone away: that is no answer. Python would complain once more when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    return UNHEARD


def _code(ending: SystemExit) -> int:
    return ending.code if isinstance(ending.code, int) else BUG


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of the process, and return its exit code."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")  # a name in UTF-8 must not fail an ASCII terminal
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="gpubus", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _unheard()
    except SystemExit as ending:  # typer's own way to end when the reader of a pipe is gone
        return _unheard() if type(sys.stdout).__name__ == "PacifyFlushWrapper" else _code(ending)
    except Exception as error:  # noqa: BLE001  explained, or shown in full as the bug that it is
        explained = explain(error)
        if explained is None:
            traceback.print_exc()
            return BUG
        line, code = explained
        sys.stderr.write(f"gpubus: {line}\n")
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
