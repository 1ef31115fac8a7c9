"""``gpubus replay``: think again what the allocators thought, and see whether the same comes out."""

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE, InputError

if TYPE_CHECKING:
    from deploy.replay.verify import Verdict


def replay(
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every decision with what is on record.")] = False,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Decide again what was decided, from the log alone.

    Each allocator is taken through its journal: the same engine, the same snapshot, the same order. With --verify every
    decision on record must come out bit for bit; exit code 1 when one does not, and the first difference is printed in
    full. Decisions of another engine version are named, not compared.

    \b
    Example: gpubus replay --verify
    """
    if not verify:
        raise InputError("say what to replay for: --verify compares every decision with what is on record")
    started = time.perf_counter()
    found = run(_verify(nats, store))
    seconds = time.perf_counter() - started
    if as_json:
        from deploy.cli.output import print_json

        print_json(found)
    else:
        _show(found, seconds)
    if found.different or found.violations or found.undecodable:
        raise typer.Exit(NEGATIVE)


async def _verify(nats: list[str] | None, store: Path | None) -> "Verdict":
    from deploy.replay.verify import Verifier

    async with open_bus(nats, store) as bus:
        gc.freeze()  # what is loaded stays; what comes dies young, so looking through all of it now and then is in vain
        gc.set_threshold(100_000, 50, 100)
        return await Verifier(bus).run()


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
    for count, what in (
        (found.unexplained, "have no journal that leads to them"),
        (found.undecodable, "cannot be read"),
        (found.different, "differ"),
    ):
        if count:
            print(f"{count} {what}")
    for violation in found.violations[:5]:
        print(clean(f"  ledger {violation.seq}, node {violation.node}: {violation.rule}: {violation.detail}"))
    for first in found.differences[:1]:
        print(f"\nThe first difference, {first.stream} {first.sequence}: {', '.join(first.fields)}")
        for title, decision in (("recorded", first.recorded), ("replayed", first.replayed)):
            print(f"{title}: {clean(_compact(decision))}")


def _compact(decision: dict[str, Any]) -> str:
    import orjson

    return orjson.dumps(decision).decode()
