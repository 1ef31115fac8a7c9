"""``gpubus alerts``: which rules there are, and how far they have come."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NotFoundError
from deploy.cli.output import clean, instant, make_console, make_table, print_json, warn

if TYPE_CHECKING:
    from schemas.alert import AlertRule, RuleRefusal, RuleSet, RuleState

app = typer.Typer(
    help="""Look at alert rules, and try them before they ring.

    \b
    Examples:
      gpubus alerts status
      gpubus alerts lint my-values.yaml
      gpubus alerts backtest GPUTemperatureWarning --file my-values.yaml --from 2026-11-29T00:00:00Z
      gpubus alerts test GPUTemperatureHigh
    """,
    rich_markup_mode=None,
)

_SHOWN: Final = 2
"""Streaks of one rule that a table has room for."""


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_rules(*, as_json: JsonOption = False, nats: NatsOption = None, store: StoreOption = None) -> None:
    """List the rules in force.

    \b
    Example:
      gpubus alerts list --json | jq -r '.[].name'
    """
    active, _, _ = run(_read(nats, store))
    if active is None:
        raise NotFoundError("no rules are in force: is an alerter running?")
    if as_json:
        print_json(active.rules)
        return
    console = make_console()
    console.print(f"{len(active.rules)} rules of {clean(active.origin)}")
    columns = ("rule", "severity", "threshold>", "every>", "count>", "summary")
    console.print(make_table(console, columns, [_rule_row(rule) for rule in active.rules]))


def _rule_row(rule: "AlertRule") -> list[object]:
    count, every = rule.consecutive_count, rule.evaluation_interval
    return [rule.name, rule.severity, f"{rule.threshold:g}", every, count, rule.summary]


@app.command("status")
def status(*, as_json: JsonOption = False, nats: NatsOption = None, store: StoreOption = None) -> None:
    """Show how far each rule has come: streaks, what fires, when it was evaluated and will be next.

    \b
    Example:
      gpubus alerts status
    """
    from consumers.alerter.silence import silence

    active, refusal, states = run(_read(nats, store))
    refused = refusal if refusal is not None and refusal.problems else None
    if as_json:
        print_json({"active": active, "refused": refused, "states": states})
        return
    console = make_console()
    if refused is not None:
        console.print(
            f"The rules of {clean(refused.origin)} were refused, those below stay in force:", style="bold red"
        )
        console.print("\n".join(f"  {clean(problem)}" for problem in refused.problems))
    if active is None:
        raise NotFoundError("no rules are in force: is an alerter running?")
    console.print(
        f"{len(active.rules)} rules of {clean(active.origin)}" + ("" if active.rules else ": nothing is watched")
    )
    by_name = {state.rule: state for state in states}
    rows = [_status_row(rule, by_name.get(rule.name)) for rule in active.rules]
    columns = ("rule", "state", "streaks", "last evaluation", "next")
    console.print(make_table(console, columns, rows))
    for state in states:
        for streak in state.streaks:
            if streak.firing:
                console.print(
                    clean(f"FIRING {state.rule} since {instant(streak.since)}: {streak.annotations['summary']}")
                )
            if said := silence(streak):
                console.print(clean(f"HELD {state.rule} {streak.labels['instance']}: {said}"))


def _status_row(rule: "AlertRule", state: "RuleState | None") -> list[object]:
    from consumers.alerter.streaks import instant as slot_instant
    from schemas.durations import seconds

    if state is None or not state.slot:
        return [rule.name, "never evaluated", "", "", ""]
    streaks = ", ".join(f"{s.labels['instance']} {s.count}/{rule.consecutive_count}" for s in state.streaks[:_SHOWN])
    more = f", and {len(state.streaks) - _SHOWN} more" if len(state.streaks) > _SHOWN else ""
    firing = sum(streak.firing for streak in state.streaks)
    word = f"{firing} firing" if firing else "quiet"
    if state.failures:
        word += f", failed {state.failures} times: {state.error}"
    last = slot_instant(state.slot)
    following = datetime.fromtimestamp(last.timestamp() + seconds(rule.evaluation_interval), last.tzinfo)
    return [rule.name, word, streaks + more, instant(last), instant(following)]


async def _read(
    nats: list[str] | None, store: Path | None
) -> "tuple[RuleSet | None, RuleRefusal | None, list[RuleState]]":
    from bus.codec import decode_as
    from bus.errors import UndecodableError
    from bus.history import newest
    from bus.streams import STATE
    from consumers.alerter.rulebook import ACTIVE, REFUSED
    from schemas.alert import RuleRefusal, RuleSet, RuleState

    active, refusal, states = None, None, []
    async with open_bus(nats, store) as bus:
        records, _ = await newest(bus, STATE, [ACTIVE, REFUSED, "gpubus.state.alert.*"])
    for record in records:
        try:
            if record.subject == ACTIVE:
                active = decode_as(RuleSet, record.payload).data
            elif record.subject == REFUSED:
                refusal = decode_as(RuleRefusal, record.payload).data
            else:
                states.append(decode_as(RuleState, record.payload).data)
        except UndecodableError as error:
            warn(f"STATE {record.seq} on {record.subject} is left out: {error.reason}")
    return active, refusal, sorted(states, key=lambda state: state.rule)
