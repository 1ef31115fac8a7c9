"""``gpubus capacity``: what pools lack and have to spare, and what is done about it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NotFoundError
from deploy.cli.newest import newest_of
from deploy.cli.output import gib, instant, make_console, print_json, show_table, tflops

if TYPE_CHECKING:
    from schemas.capacity import PoolCapacity, Shape, Size

COLUMNS = ("pool", "total", "free", "coming", "claims>", "waiting pods>", "held back by", "why")


def capacity(
    pool: Annotated[str | None, typer.Argument(metavar="[POOL]", help="Only this pool.", show_default=False)] = None,
    *,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show what pools lack and have to spare, which nodes are on their way, and what keeps a pool from growing.

    \b
    Example: gpubus capacity --json | jq '.[].missing'
    """
    found = run(_read(nats, store, pool))
    if as_json:
        print_json(found if pool is None else found[0])
        return
    console = make_console()
    if not found:
        console.print("no pool has been looked at; `gpubus run scaler` does")
        return
    show_table(console, "", COLUMNS, [_row(one) for one in found])
    short = [
        (one.pool, missing.pods, words(missing.shape), missing.reason, instant(missing.since))
        for one in found
        for missing in one.missing
    ]
    show_table(console, "waiting for room", ("pool", "pods>", "each asks for", "reason", "since"), short)


async def _read(nats: list[str] | None, store: Path | None, pool: str | None) -> list["PoolCapacity"]:
    from bus import subjects
    from schemas.capacity import PoolCapacity

    wanted = "gpubus.state.capacity.*" if pool is None else subjects.state("capacity", pool)
    async with open_bus(nats, store) as bus:
        found = await newest_of(bus, wanted, PoolCapacity)
    if pool is not None and not found:
        raise NotFoundError(f"nothing is known of pool {pool}: it must exist, and `gpubus run scaler` must run")
    return sorted(found, key=lambda one: one.pool)


def _row(pool: "PoolCapacity") -> tuple[object, ...]:
    return (
        pool.pool,
        size(pool.total),
        size(pool.available),
        size(pool.coming),
        len(pool.claims),
        sum(missing.pods for missing in pool.missing),
        pool.held or "-",
        pool.message,
    )


def size(amounts: "Size") -> str:
    """Return amounts for people; GPUs that are partly free are not among the GPUs of what is free."""
    return f"{amounts.gpus} GPUs, {tflops(amounts.tflops_milli)} TFLOPS, {gib(amounts.vram_bytes)} GiB"


def words(shape: "Shape") -> str:
    """Return what one pod asks for."""
    parts = [
        f"{shape.gpus} GPUs",
        f"{tflops(shape.tflops_milli)} TFLOPS" if shape.tflops_milli else "",
        f"{shape.compute_milli / 10:g} % compute" if shape.compute_milli else "",
        f"{gib(shape.vram_bytes)} GiB" if shape.vram_bytes else "",
        f"{shape.vram_milli / 10:g} % VRAM" if shape.vram_milli else "",
        "alone on each" if shape.dedicated else "",
        f"of {' or '.join(shape.models)}" if shape.models else "",
    ]
    return ", ".join(filter(None, parts))
