"""``gpubus drift``: where the ledger, the API server and what runs on the GPUs differ."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE, InputError

if TYPE_CHECKING:
    from consumers.reconciler.look import View


def drift(
    *,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", metavar="PATH", help="Which cluster. [default: KUBECONFIG, or that of the pod we run in]"
        ),
    ] = None,
    no_cluster: Annotated[
        bool, typer.Option("--no-cluster", help="Leave the API server out: compare the ledger with what agents see.")
    ] = False,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Compare who holds what by the ledger with the API server and with what runs on the GPUs, and change nothing.

    Each difference comes with all three values. What can be repaired safely `gpubus run reconciler` repairs.

    \b
    Examples:
      gpubus drift
      gpubus drift --no-cluster --json

    Exit code 0 when nothing differs, 1 when something does.
    """
    if no_cluster and kubeconfig is not None:
        raise InputError("--no-cluster and --kubeconfig contradict each other: keep one of them")
    if store is not None and not no_cluster:
        raise InputError("--store reads a bus that is stopped, and no cluster is as it was then: add --no-cluster")
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    found = run(_look(nats, store, cluster=not no_cluster))
    if as_json:
        from deploy.cli.output import print_json

        print_json({"pods": found.pods, "dark": found.dark, "differences": found.differences})
    else:
        _show(found)
    if found.differences:
        raise typer.Exit(NEGATIVE)


async def _look(nats: list[str] | None, store: Path | None, *, cluster: bool) -> "View":
    from bus.errors import BusError, UndecodableError
    from bus.kube.client import Client
    from consumers.reconciler.look import look

    async with open_bus(nats, store) as bus:
        try:
            if not cluster:
                return await look(bus, None)
            async with await Client.connect() as client:
                return await look(bus, client)
        except UndecodableError as error:
            raise BusError(f"a ledger record cannot be read, and half a ledger tells nothing: {error}") from error


def _show(found: "View") -> None:
    from deploy.cli.output import clean, make_console, show_fields, warn

    if found.dark:
        warn(f"{len(found.dark)} nodes hold something and their agents are not heard: {', '.join(found.dark[:5])}")
    console = make_console()
    for one in found.differences:
        who = f"pod {one.namespace}/{one.name}" if one.name else f"GPU {one.gpu}" if not one.uid else f"pod {one.uid}"
        where = f" on {one.node}" if one.node else ""
        console.print(clean(f"{one.kind}: {who}{where}"), style="bold")
        show_fields(
            console,
            [
                ("GPU", one.gpu if one.name or one.uid else ""),
                ("ledger", one.ledger),
                ("API server", one.api),
                ("GPUs", one.observed),
                (
                    "repair",
                    {"release": "what it holds is given back", "schedule": "it is scheduled again"}.get(one.repair),
                ),
            ],
        )
    print(f"{len(found.differences)} differences among {found.pods} pods")
