"""``gpubus plan --from-history``: which oversell ratio the past would have borne."""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import make_console, print_json, show_fields

if TYPE_CHECKING:
    from consumers.scaler.oversell import Oversell


def check_risk(risk: float) -> None:
    """Check that a risk is a part of the minutes.

    Raises:
        InputError: It is not.
    """
    if not 0 <= risk < 1:
        raise InputError(f"--risk is {risk:g}: write the part of all minutes that may be overloaded, such as 0.01")


async def from_history(pool: str, days: float, risk: float) -> "Oversell":
    """Return what the last days of a pool would have borne.

    Raises:
        NotFoundError: Too little is recorded.
        SettingError, StoreError: The metrics store cannot be used.
    """
    from consumers.scaler.history import read_history
    from consumers.scaler.oversell import LEAST_POINTS, Counts, advise
    from deploy.local.monitoring import metrics_store

    until = datetime.fromtimestamp(time.time(), UTC)
    compute = vram = Counts()
    async with metrics_store() as store:
        async for _, compute, vram in read_history(store, pool, until - timedelta(days=days), until):  # noqa: B007
            pass
    found = advise(compute, vram, risk)
    if found is None:
        raise NotFoundError(
            f"pool {pool} has {compute.points} recorded minutes of GPUs with pods in {days:g} days, and {LEAST_POINTS} are "
            "needed: name a longer time with --days, or another pool"
        )
    return found


def show(found: "Oversell", pool: str, days: float, risk: float, *, as_json: bool) -> None:
    """Print the advice."""
    if as_json:
        print_json(found)
        return
    console = make_console()
    console.print(f"pool {pool}, last {days:g} days, {found.points} minutes of GPUs with pods")
    show_fields(
        console,
        [
            ("tflopsOversellRatio", f"{found.tflops_ratio}  (all but {100 * risk:g} % of the minutes had room for it)"),
            ("VRAM, likewise", f"{found.vram_ratio}  (what exceeds 100 is what hosts must hold)"),
            ("used of what was asked", f"{found.used_percent} % of compute in the busiest minute that counts"),
        ],
    )
