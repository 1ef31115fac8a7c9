"""``gpubus doctor``: what is wrong with an installation, and what to do about it."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.cluster import KubeconfigOption
from deploy.cli.connect import JsonOption, NatsOption, open_bus, run
from deploy.cli.errors import NEGATIVE, BusUnavailableError

if TYPE_CHECKING:
    from deploy.doctor.findings import Finding

ONLY_WARNINGS = 4
MARKS = {"ok": "ok", "unknown": "?", "warning": "warn", "critical": "FAIL"}


def doctor(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Where gpubus is installed.")] = "tensor-fusion-sys",
    release: Annotated[str, typer.Option("--release", help="Name of the installation.")] = "tensor-fusion-sys",
    roles: Annotated[
        str, typer.Option("--roles", help="Roles that the account used here should be able to play, with commas.")
    ] = "",
    no_cluster: Annotated[bool, typer.Option("--no-cluster", help="Look at the bus alone.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at bus, cluster and production settings, and say of each what is wrong and which line mends it.

    Nothing is changed: the pod that is sent through admission is not stored.

    \b
    Example: gpubus doctor --nats nats://localhost:4222 --namespace gpubus-system --release gpubus

    Exit code 0 when all is well, 4 with warnings alone, 1 when something fails, 3 when the bus cannot be reached.
    """
    from deploy.doctor.findings import worst

    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    names = [role.strip() for role in roles.split(",") if role.strip()]
    found, away = run(_examine(nats, namespace, release, names, cluster=not no_cluster))
    if as_json:
        from deploy.cli.output import print_json

        print_json({"worst": worst(found), "findings": found})
    else:
        _show(found)
    if away is not None:
        raise away
    code = {"critical": NEGATIVE, "warning": ONLY_WARNINGS, "unknown": ONLY_WARNINGS}.get(worst(found), 0)
    if code:
        raise typer.Exit(code)


async def _examine(
    nats: list[str] | None, namespace: str, release: str, roles: list[str], *, cluster: bool
) -> "tuple[list[Finding], BusUnavailableError | None]":
    from bus.kube.client import Client
    from deploy.doctor.bus import examine_bus
    from deploy.doctor.cluster import examine_cluster
    from deploy.doctor.findings import Finding
    from deploy.doctor.rights import lacks_ourselves

    found: list[Finding] = []
    away = None
    try:
        async with open_bus(nats, None) as bus:
            found += await examine_bus(bus)
    except BusUnavailableError as error:
        away = error
        fix = "kubectl get pods -l app.kubernetes.io/component=nats; from a laptop: kubectl port-forward service/NAME-nats 4222"
        found.append(Finding(check="bus", severity="critical", says=str(error), fix=fix))
    if cluster:
        async with await Client.connect() as client:
            found += await examine_cluster(client, namespace, release)
            if roles:
                found += await lacks_ourselves(client, roles, namespace)
    return found, away


def _show(found: "list[Finding]") -> None:
    from deploy.cli.output import clean, make_console

    console = make_console()
    for finding in found:
        style = {"critical": "bold red", "warning": "yellow"}.get(finding.severity, "")
        console.print(clean(f"{MARKS[finding.severity]:<5} {finding.check}: {finding.says}"), style=style)
        if finding.fix:
            console.print(clean(f"      fix: {finding.fix}"))
