"""``gpubus issue-certificates``: keep the certificates and passwords of an installation, where no cert-manager does."""

import os
import re
from typing import Annotated, Final

import typer

from deploy.cli.cluster import KubeconfigOption
from deploy.cli.connect import run
from deploy.cli.errors import InputError

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_USER: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def issue_certificates(
    *,
    namespace: Annotated[str, typer.Option("--namespace", help="Where gpubus is installed.")],
    release: Annotated[str, typer.Option("--release", help="Name of the installation; Secrets begin with it.")],
    webhook: Annotated[
        str,
        typer.Option(
            "--webhook", metavar="HOSTS", help="Names of the gateway's Service, with commas; empty for no certificate."
        ),
    ] = "",
    bus: Annotated[
        str,
        typer.Option(
            "--bus", metavar="HOSTS", help="Names of the NATS servers, with commas; empty for no certificate."
        ),
    ] = "",
    kube_scheduler: Annotated[
        str,
        typer.Option(
            "--kube-scheduler", metavar="HOSTS", help="Names that the kube-scheduler shows gateways, with commas."
        ),
    ] = "",
    passwords: Annotated[
        str, typer.Option("--passwords", metavar="USERS", help="Who needs a password for the bus, with commas.")
    ] = "",
    callout: Annotated[
        bool, typer.Option("--callout", help="Also the key with which authenticators vouch for agents.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Make the certificates and passwords that are missing, and renew those that have a third of their life left.

    It changes nothing else, and may run as often as one likes: the chart runs it before and after each installation and once a
    day. Secrets: RELEASE-ca, RELEASE-webhook-tls, RELEASE-nats-tls, RELEASE-kube-scheduler-tls and RELEASE-nats-auth.

    \b
    Example: gpubus issue-certificates --namespace gpubus-system --release gpubus --webhook gpubus-webhook.gpubus-system.svc
    """
    for option, text, pattern in (
        ("--namespace", [namespace], _NAME),
        ("--release", [release], _NAME),
        ("--webhook", _words(webhook), _HOST),
        ("--bus", _words(bus), _HOST),
        ("--kube-scheduler", _words(kube_scheduler), _HOST),
        ("--passwords", _words(passwords), _USER),
    ):
        for word in text:
            if not pattern.fullmatch(word):
                raise InputError(f"{option} has {word!r}: write names with commas")
    if not (webhook or bus or kube_scheduler or passwords or callout):
        raise InputError("nothing is wanted: give one of --webhook, --bus, --kube-scheduler, --passwords and --callout")
    leaves = {
        f"{release}-webhook-tls": _words(webhook),
        f"{release}-nats-tls": _words(bus),
        f"{release}-kube-scheduler-tls": _words(kube_scheduler),
    }
    users = _words(passwords)
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    for line in run(_keep(namespace, release, leaves, users, callout=callout)):
        typer.echo(line)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


async def _keep(
    namespace: str, release: str, leaves: dict[str, list[str]], users: list[str], *, callout: bool
) -> list[str]:
    from datetime import UTC, datetime

    from bus.kube.client import Client

    try:
        from deploy.certificates.renewal import Wanted
        from deploy.certificates.service import Told, keep
    except ImportError as error:
        raise InputError(f"certificates need {error.name}: install gpubus[issuer]") from None
    hook, bus = f"{release}-webhook-tls", f"{release}-nats-tls"
    wanted = Wanted(
        authority=f"{release}-ca",
        leaves={name: hosts for name, hosts in leaves.items() if hosts},
        passwords={f"{release}-nats-auth": users} if users else {},
        callout=f"{release}-nats-auth" if callout else "",
    )
    told = Told(
        webhook=(f"{release}-mutating-webhook", hook) if leaves[hook] else ("", ""),
        restarts=((f"{release}-nats", bus),) if leaves[bus] else (),
    )
    async with await Client.connect() as client:
        return await keep(client, namespace, wanted, told, datetime.now(UTC))
