"""``gpubus check``: the ledger's invariants, checked from its first record."""

from typing import TYPE_CHECKING

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE

if TYPE_CHECKING:
    from pathlib import Path

    from deploy.local.audit import Audit


def check(*, nats: NatsOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Read the whole ledger and check that nothing was ever given twice.

    \b
    Example: gpubus check --nats nats://127.0.0.1:4222

    Exit code 0 when every invariant holds, 1 when one is broken.
    """
    found = run(_audit(nats, store))
    if as_json:
        from deploy.cli.output import print_json

        print_json(
            {
                "records": found.records,
                "complete": found.complete,
                "pods_placed": len(found.placed),
                "pods_holding": found.holding,
                "double_allocations": found.double_allocations,
                "violations": found.violations,
                "taken_back": found.taken_back,
            }
        )
    else:
        history = "the whole history" if found.complete else "older ones have been dropped by retention"
        print(
            f"{found.records} ledger records, {history}: {len(found.placed)} pods placed, "
            f"{found.holding} hold something now, {len(found.violations)} violations"
        )
        if found.taken_back:
            print(f"{len(found.taken_back)} second places of pods whose command came twice, all taken back")
        for violation in found.violations:
            print(f"  ledger {violation.seq}, {violation.where}: {violation.rule}: {violation.detail}")
    if found.violations:
        raise typer.Exit(NEGATIVE)


async def _audit(nats: list[str] | None, store: "Path | None") -> "Audit":
    from deploy.local.audit import audit

    async with open_bus(nats, store) as bus:
        return await audit(bus)
