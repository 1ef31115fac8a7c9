"""``gpubus alerts lint``, ``test`` and ``backtest``: rules tried before they ring."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from deploy.cli.alerts import app
from deploy.cli.connect import JsonOption, NatsOption, open_bus, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import clean, instant, make_console, make_table, print_json, show_fields

if TYPE_CHECKING:
    from consumers.alerter.backtest import Backtest
    from consumers.alerter.rules import CompiledRule

FileOption = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Take the rule from this file instead of those in force.")
]
ASKED_S: Final = 120.0
"""How long an alerter may take for a backtest."""

RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]


@app.command("lint")
def lint(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Chart values, a config.yaml, or a list of rules.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Check a file of rules as the alerter would, and say all that is wrong with it.

    Warnings are of rules that would be taken: queries over tables and columns that are not there, and texts with columns that the
    query does not return.

    \b
    Example:
      gpubus alerts lint my-values.yaml
    """
    from consumers.alerter.configuration import parse
    from consumers.alerter.lint import warnings
    from consumers.alerter.rules import RulesError

    try:
        found = parse(_text(file))
    except RulesError as error:
        if as_json:
            print_json({"rules": 0, "problems": error.problems, "warnings": []})
        else:
            typer.echo("\n".join(map(clean, error.problems)))
        raise NotFoundError(f"{file} would be refused: {_count(len(error.problems), 'problem')}") from None
    odd = warnings(found)
    if as_json:
        print_json({"rules": len(found.rules), "problems": [], "warnings": odd})
        return
    for warning in odd:
        typer.echo(f"warning: {clean(warning)}")
    typer.echo(f"{_count(len(found.rules), 'rule')}, {'all good' if not odd else 'all would be taken'}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@app.command("test")
def send_test(rule: RuleArgument, *, file: FileOption = None, nats: NatsOption = None) -> None:
    """Send a test alert of a rule through notifier and Alertmanager to whoever is on call; it is over after two minutes.

    It carries the rule's labels, an instance that says what it is, and touches no streak.

    \b
    Example:
      gpubus alerts test GPUTemperatureHigh
    """
    name = run(_send_test(rule, file, nats))
    typer.echo(f"sent a test alert of {clean(name)}; watch your channel, or `gpubus events 'gpubus.alert.>' --last 1`")


async def _send_test(name: str, file: Path | None, nats: list[str] | None) -> str:
    import time

    from consumers.alerter.states import RuleStates
    from consumers.alerter.trial import test_notice

    async with open_bus(nats, None) as bus:
        compiled = await _find(name, file, bus)
        await RuleStates(bus, "/gpubus/cli").tell(test_notice(compiled, slot=time.time_ns()))
    return compiled.rule.name


@app.command("backtest")
def backtest(
    rule: RuleArgument,
    *,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First evaluation, such as 2026-11-29T00:00:00Z.")
    ],
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Last evaluation. [default: now]")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="URL", help="Metrics store. [env: GPUBUS_METRICS]")
    ] = None,
    file: FileOption = None,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a rule over stored metrics, and say how often it would have fired.

    A running alerter is asked, unless --metrics or GPUBUS_METRICS names a store to read here.

    \b
    Example:
      gpubus alerts backtest GPUTemperatureWarning --file my-values.yaml --from 2026-11-29T00:00:00Z
    """
    found = run(_backtest(rule, (begin, end), metrics, file, nats))
    if as_json:
        print_json(found)
        return
    console = make_console()
    fired = f"{len(found.episodes)} times" if len(found.episodes) != 1 else "once"
    console.print(f"{clean(rule)} would have fired {fired} in {found.evaluations} evaluations")
    show_fields(console, [("failed evaluations", found.failures or ""), ("last error", found.error)])
    rows = [
        [e.instance, instant(e.fired), instant(e.ended) if e.ended else "still firing", e.summary]
        for e in found.episodes
    ]
    if rows:
        console.print(make_table(console, ("instance", "fired", "ended", "summary"), rows))


async def _backtest(
    name: str, span: tuple[str, str | None], metrics: str | None, file: Path | None, nats: list[str] | None
) -> "Backtest":
    import os
    import time

    from bus.rpc import call
    from consumers.alerter.backtest import MOST_ASKED, MOST_EVALUATIONS, SERVICE, Backtest, BacktestRequest
    from consumers.alerter.backtest import backtest as play
    from consumers.metrics.settings import store
    from consumers.metrics.store import StoreError
    from deploy.local.monitoring import METRICS

    now = time.time()
    begin = _instant("--from", span[0])
    end = _instant("--to", span[1]) if span[1] is not None else now
    if begin > now:
        raise InputError(f"--from {span[0]} is in the future: choose a time of which there are metrics")
    if end < begin:
        raise InputError(f"--to {span[1]} is before --from {span[0]}: exchange them")
    url = metrics or os.environ.get(METRICS)
    if not url:
        async with open_bus(nats, None) as bus:
            compiled = await _find(name, file, bus)
            _fits(compiled, begin, end, MOST_ASKED)
            request = BacktestRequest(rule=compiled.rule, begin=begin, end=end)
            return await call(bus, SERVICE, request, Backtest, timeout=ASKED_S)
    if file is not None:
        compiled = await _find(name, file, None)
    else:
        async with open_bus(nats, None) as bus:
            compiled = await _find(name, None, bus)
    _fits(compiled, begin, end, MOST_EVALUATIONS)
    try:
        opened = store(url)
        try:
            await opened.open()
            return await play(compiled, opened, begin=begin, end=end)
        finally:
            await opened.close()
    except StoreError as error:
        raise NotFoundError(f"the metrics store cannot be read: {error}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def _fits(compiled: "CompiledRule", begin: float, end: float, most: int) -> None:
    from consumers.alerter.backtest import evaluations

    try:
        evaluations(compiled, begin=begin, end=end, most=most)
    except ValueError as error:
        raise InputError(f"--from and --to: {error}") from None


async def _find(name: str, file: Path | None, bus: Any) -> "CompiledRule":
    from bus.records import read
    from bus.streams import STATE
    from consumers.alerter.configuration import parse
    from consumers.alerter.rulebook import ACTIVE
    from consumers.alerter.rules import CompiledRule, RulesError
    from schemas.alert import RuleSet

    if file is not None:
        try:
            rules = parse(_text(file)).rules
        except RulesError as error:
            raise InputError(f"{file}: {error}") from None
        origin = str(file)
    else:
        _, active = await read(bus, STATE, ACTIVE, RuleSet)
        rules, origin = (active.rules, active.origin) if active is not None else ((), "the bus")
    for rule in rules:
        if rule.name == name:
            return CompiledRule(rule)
    known = ", ".join(rule.name for rule in rules) or "none"
    raise NotFoundError(f"no rule {name!r} in {origin}: there are {known}")


def _text(file: Path) -> bytes:
    from consumers.alerter.sources import RulesFileError, read_rules

    try:
        return read_rules(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except RulesFileError as error:
        raise InputError(f"{file} cannot be read: {error}") from None


def _instant(option: str, text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option} {text!r} is no time: write one such as 2026-11-29T00:00:00Z") from None
    if at.tzinfo is None:
        raise InputError(f"{option} {text!r} says no time zone: add Z for UTC")
    return at.timestamp()
