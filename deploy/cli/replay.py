"""``gpubus replay``: think again what the allocators thought, to see whether the same comes out, or what else would have."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE, InputError

if TYPE_CHECKING:
    from consumers.allocator.shadow.rules import Rules
    from deploy.replay.jobs import Helper
    from deploy.replay.scenario import Result
    from deploy.replay.verdict import Verdict


def replay(
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every decision with what is on record.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="WHEN", help="Verify from here: a time, an age or a ledger sequence."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Verify up to here, likewise.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Processes to verify with at most. [default: one for each processor, up to 8]"
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="MODE", help="Under another placement mode, or `all` of them; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Under another capacity, such as tflopsOversellRatio=300."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw the course over time: .svg or .png.")
    ] = None,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Decide again what was decided, from the log alone.

    With --policy or --set, the same pods come to the same nodes under other rules: how much would have been given out, who
    would have waited, and for how long, and which alerts would have fired by the rules in force. Rules that read what only
    running pods can tell, such as use and temperature, are named as not known.

    With --verify each allocator is taken through its journal: the same engine, the same snapshot, the same order. Every
    decision on record must come out bit for bit, be announced if its allocator lived on, and be announced as what it is;
    exit code 1 when one is not, and the first difference is printed in full. Decisions of another engine version are named,
    not compared; a journal that lacks a turn in its middle is a no as well, and so is a log of which nothing can be compared.
    What is cut off at the very end looks like what was still on its way: of the ledger and the journals
    `gpubus audit verify --head` finds it. Run both.
    Large logs are shared out among several processes by allocator (--jobs): what is found stays the same.

    \b
    Examples:
      gpubus replay --verify --from 15m
      gpubus replay --policy all --picture policies.svg
      gpubus replay --set tflopsOversellRatio=300 --json
    """
    if jobs is not None and not verify:
        raise InputError("--jobs is for --verify: other rules are played in one process")
    if verify == bool(policy or settings):
        raise InputError(
            "say what to replay for: --verify compares with what is on record, --policy and --set change rules"
        )
    if not verify and (since or until):
        raise InputError("--from and --to bound what --verify compares: other rules are played from the beginning")
    if not verify:
        _compare(rules_of(policy or [], settings or []), picture, as_json=as_json, nats=nats, store=store)
        return
    from deploy.replay.jobs import MOST, helpers, processors

    with helpers((jobs or min(processors(), MOST)) - 1) as crew:
        found, seconds = run(_verify(since, until, crew, nats, store))
    if as_json:
        from deploy.cli.output import print_json

        print_json(found)
    else:
        _show(found, seconds)
    if not found.holds:
        raise typer.Exit(NEGATIVE)


async def _verify(
    since: str | None, until: str | None, crew: "list[Helper]", nats: list[str] | None, store: Path | None
) -> "tuple[Verdict, float]":
    from bus.streams import LEDGER, stream_info
    from deploy.cli.when import ledger_sequence
    from deploy.replay.jobs import collect_seldom, verify

    async with open_bus(nats, store) as bus:
        collect_seldom()
        first = await ledger_sequence(bus, since, "--from") if since is not None else 0
        last = await ledger_sequence(bus, until, "--to") if until is not None else None
        end = (await stream_info(bus, LEDGER)).state.last_seq
        if first > (end if last is None else last):
            after = f"after --to {until}" if last is not None else f"behind the ledger's last record, {end}"
            raise InputError(f"--from {since} is {after}: nothing would be compared")
        started = time.perf_counter()
        found = await verify(bus, first, last, crew=crew)
        return found, time.perf_counter() - started


def _show(found: "Verdict", seconds: float) -> None:
    from deploy.cli.output import clean, percent, warn

    for note in found.notes:
        warn(note)
    rate = found.decisions / max(seconds, 1e-9)
    print(
        f"{found.reproduced} of {found.decisions} decisions of {found.allocators} allocators reproduced bit for bit "
        f"({percent(found.reproduced, found.decisions)}), {found.attempts} overtaken placements too; {rate:.0f} decisions/s"
    )
    if found.unheard:
        print(f"{found.unheard} decisions never took effect: their allocator died over them, or left the pod to others")
    if not found.compared:
        print("nothing was compared: no decision of this engine, with the journal that led to it, is on record there")
    for count, what in (
        (len(found.taken_back), "second places of pods whose command came twice, all taken back"),
        (found.unexplained, "have no journal that leads to them"),
        (found.unfounded, "of these are nobody's: no journal is missing, and none leads to them"),
        (found.unannounced, "were never announced, or taken out of DECISION"),
        (found.envelopes, "have an envelope that does not agree with what is in it"),
        (found.gaps, "journals lack a turn between two others"),
        (found.undecodable, "cannot be read"),
        (found.different, "differ"),
    ):
        if count:
            print(f"{count} {what}")
    for violation in found.violations[:5]:
        print(clean(f"  ledger {violation.seq}, node {violation.node}: {violation.rule}: {violation.detail}"))
    for entry in found.astray[:5]:
        print(clean(f"  {entry.stream} {entry.sequence or ''} {entry.subject}: {entry.detail}"))
    for first in found.differences[:1]:
        print(f"\nThe first difference, {first.stream} {first.sequence}: {', '.join(first.fields)}")
        for title, decision in (("recorded", first.recorded), ("replayed", first.replayed)):
            print(f"{title}: {clean(_compact(decision))}")


def _compact(decision: dict[str, Any]) -> str:
    import orjson

    return orjson.dumps(decision).decode()


def rules_of(policies: list[str], settings: list[str]) -> "list[Rules]":
    """Return the sets of rules that the options name: one for each policy, all with the same settings.

    Raises:
        InputError: They name none.
    """
    from typing import get_args

    from consumers.allocator.shadow.rules import SETTINGS, Rules
    from schemas.cluster import Oversubscription, PlacementMode

    modes: tuple[PlacementMode, ...] = get_args(PlacementMode)
    names = modes if "all" in policies else tuple(dict.fromkeys(policies))
    for name in names:
        if name not in modes:
            raise InputError(f"--policy {name!r} is no placement mode: use all, or one of {', '.join(modes)}")
    fields: dict[str, int] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if key not in SETTINGS or not equals or not value.isdecimal():
            raise InputError(f"--set {text!r}: write KEY=NUMBER, and KEY is one of {', '.join(SETTINGS)}")
        fields[SETTINGS[key]] = int(value)
    try:
        import msgspec

        msgspec.convert(fields, Oversubscription)
    except msgspec.ValidationError as error:
        raise InputError(f"--set {', '.join(settings)}: {error}") from None
    suffix = f" with {', '.join(settings)}" if settings else ""
    return [Rules(f"{mode}{suffix}", mode, fields) for mode in modes if mode in names] or [
        Rules(suffix.strip(), None, fields)
    ]


def _compare(
    rules: "list[Rules]", picture: Path | None, *, as_json: bool, nats: list[str] | None, store: Path | None
) -> None:
    if picture is not None:
        from deploy.replay.picture import check

        check(picture)
    results = run(_play(rules, nats, store))
    if picture is not None:
        from deploy.replay.picture import draw

        draw(picture, results)
    from deploy.cli.output import make_console, print_json, show_table

    if as_json:
        print_json(results)
        return
    counts = ("pods>", "placed>", "never>", "elsewhere>", "waited>", "p50 s>", "p99 s>", "alerts>")
    columns = ("rules", *counts, "mean %>", "peak %>", "end %>", "stranded %>")
    rows = [
        [r.rules, r.pods, r.placed, r.unplaced, r.elsewhere, r.waited, f"{r.wait_p50_s:.2f}", f"{r.wait_p99_s:.2f}"]
        + [len(r.alerts)]
        + [f"{percent:.2f}" for percent in (r.tflops_percent, r.peak_tflops_percent, r.end_tflops_percent)]
        + ["-" if r is results[0] else f"{r.stranded_percent:.2f}"]
        for r in results
    ]
    show_table(make_console(), "", columns, rows)
    print(
        "\n% is compute given of what is schedulable; stranded is free compute on GPUs in use, of all that is free at the end."
    )
    _show_alerts(results)


def _show_alerts(results: "list[Result]") -> None:
    """Say which alerts would have fired under which rules, and of which nobody can tell."""
    from collections import Counter

    from deploy.cli.output import clean

    fired = [Counter((alarm.severity, alarm.rule) for alarm in result.alerts) for result in results]
    for severity, rule in sorted(set().union(*fired)):
        times = ", ".join(
            f"{result.rules} {count[severity, rule]}" for count, result in zip(fired, results, strict=True)
        )
        print(clean(f"alert {rule} ({severity}): {times}"))
    why: dict[str, list[str]] = {}
    for unknown in results[0].alerts_unknown:
        why.setdefault(unknown.why, []).append(unknown.rule)
    for reason, names in why.items():
        print(clean(f"not known whether {', '.join(names)} would fire: {reason}"))


async def _play(rules: "list[Rules]", nats: list[str] | None, store: Path | None) -> "list[Result]":
    from deploy.replay.counterfactual import play

    async with open_bus(nats, store) as bus:
        return await play(bus, rules)
