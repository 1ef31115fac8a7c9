"""``gpubus run gateway`` and ``gpubus run mutator``: the two halves of admission."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.cluster import NameOption, ReplicasOption, StdinOption
from deploy.cli.connect import NatsOption, run, servers
from deploy.cli.errors import InputError
from deploy.cli.run import MetricsPortOption, app, check_replicas, run_process

if TYPE_CHECKING:
    from consumers.mutator.options import Options
    from producers.gateway.access import Access
    from producers.gateway.callers import Callers
    from producers.gateway.tls import Certificate


@app.command("gateway")
def gateway(
    *,
    nats: NatsOption = None,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")] = "0.0.0.0:9443",
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="PEM certificate chain; read anew when it changes."),
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its private key.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="PEM of who signs certificates of kube-schedulers."),
    ] = None,
    client_name: Annotated[
        list[str] | None,
        typer.Option(
            "--client-name",
            metavar="HOST",
            help="Name that the certificate of a kube-scheduler must have; may be given more than once.",
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest", metavar="HOST:PORT", help="Answer /api/ here too: plain HTTP at a loopback address, else HTTPS."
        ),
    ] = None,
    rest_auth: Annotated[
        str | None,
        typer.Option(
            "--rest-auth",
            metavar="METHOD",
            help="Who may use --rest: tokens:FILE, or kubernetes for the API server's word.",
        ),
    ] = None,
    connections: Annotated[
        bool,
        typer.Option(
            "--connections", help="Tell pods with GPUs of other nodes where their workers are, by their token."
        ),
    ] = False,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Take admission reviews of the API server over HTTPS and have mutators answer them, until SIGTERM.

    Without a certificate it speaks plain HTTP, for a proxy in front that has one; the API server takes HTTPS only.

    A kube-scheduler with gpubus as its extender must show a certificate that --client-ca knows, unless --listen is a loopback
    address; with --client-name one of that name, where the authority signs for others too.

    With --rest it also answers questions under /api/, which inspectors know the answers to; /api/v1/openapi.json says which.
    Without --rest-auth nobody is asked who they are, and only a loopback address will do: reach it by kubectl port-forward.
    tokens:FILE has lines TOKEN,NAME; kubernetes asks the API server whose a bearer token is, and whether they may.

    With --connections it answers /api/connection: a pod with tensor-fusion.ai/is-local-gpu "false" shows the token of its service
    account there, and is told the URL of its worker, once there is one. The API server says which pod a token is of.

    \b
    Example: gpubus run gateway --certificate /tls/tls.crt --key /tls/tls.key
    """
    from deploy.local.roles import unique_name

    check_replicas(replicas)
    host, port = _address(listen, "--listen", "0.0.0.0:9443")
    pair = _certificate(certificate, key, client_ca)
    clients = frozenset(client_name or ())
    if clients and client_ca is None:
        raise InputError("--client-name is for certificates that --client-ca knows: give that too")
    access = _access(rest_auth, rest)
    at = _rest(rest, asked=access is not None, encrypted=pair is not None) if rest is not None else None

    async def play(bus: Any, name: str, stop: Any, ready: Any) -> None:
        from deploy.local.exposition import exposed
        from producers.gateway.service import GatewayService
        from producers.gateway.sockets import ListenError

        del name  # it holds nothing of its own
        async with contextlib.AsyncExitStack() as open_:
            try:
                asked = await access(open_) if access is not None else None
                callers = await _callers(open_) if connections else None
                service = GatewayService(
                    bus, pair, clients=clients, host=host, port=port, rest=at, access=asked, callers=callers
                )
            except ListenError as error:
                raise InputError(str(error)) from None
            with exposed("gateway", service.statistics):
                await service.run(stop, ready=ready)

    process = run_process(
        play, unique_name("gateway", name), servers(nats), replicas, exit_with_stdin=exit_with_stdin, metrics=metrics
    )
    run(process)


@app.command("mutator")
def mutator(
    *,
    nats: NatsOption = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="How pods are treated, in YAML: see the chart's values."),
    ] = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Decide what becomes of pods at admission, until SIGTERM; the watcher says which pools, profiles and quotas there are.

    \b
    Example: gpubus run mutator --nats nats://nats.gpubus.svc:4222 --config /etc/gpubus/admission.yaml
    """
    from deploy.local.roles import unique_name

    check_replicas(replicas)
    options = _options(config)

    async def play(bus: Any, name: str, stop: Any, ready: Any) -> None:
        from consumers.mutator.operators import Operators
        from consumers.mutator.service import Mutator

        operators = Operators(bus, options)
        await operators.start()
        try:
            await Mutator(bus, name, operators.context).run(stop, ready=ready)
        finally:
            await operators.stop()

    process = run_process(
        play, unique_name("mutator", name), servers(nats), replicas, exit_with_stdin=exit_with_stdin, metrics=metrics
    )
    run(process)


def _address(written: str, option: str, such_as: str) -> tuple[str, int]:
    host, colon, port = written.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):  # noqa: PLR2004
        raise InputError(f"{option} is {written!r}: write HOST:PORT, such as {such_as}")
    return host.strip("[]") or such_as.rpartition(":")[0], int(port)


def _rest(rest: str, *, asked: bool, encrypted: bool) -> tuple[str, int]:
    from producers.gateway.sockets import ListenError, guarded

    try:
        return guarded(*_address(rest, "--rest", "127.0.0.1:8080"), asked=asked, encrypted=encrypted)
    except ListenError as error:
        raise InputError(str(error)) from None


def _access(method: str | None, rest: str | None) -> "Callable[[contextlib.AsyncExitStack], Awaitable[Access]] | None":
    """Return what makes ready whoever says who may use --rest."""
    if method is None:
        return None
    if rest is None:
        raise InputError("--rest-auth is for --rest: give both, or neither")
    word, _, file = method.partition(":")
    if word == "tokens" and file:
        from producers.gateway.access import TokenFileError, Tokens

        try:
            tokens = Tokens(Path(file))
        except TokenFileError as error:
            raise InputError(f"--rest-auth: {error}") from None

        async def of_file(_: contextlib.AsyncExitStack) -> "Access":
            return tokens

        return of_file
    if method == "kubernetes":

        async def of_cluster(open_: contextlib.AsyncExitStack) -> "Access":
            from bus.kube.client import Client
            from producers.gateway.access import Reviews

            return Reviews(await open_.enter_async_context(await Client.connect()))

        return of_cluster
    raise InputError(f"--rest-auth is {method!r}: write tokens:FILE or kubernetes")


async def _callers(open_: contextlib.AsyncExitStack) -> "Callers":
    from bus.kube.client import Client
    from producers.gateway.callers import Callers

    return Callers(await open_.enter_async_context(await Client.connect()))


def _certificate(certificate: Path | None, key: Path | None, clients: Path | None) -> "Certificate | None":
    if (certificate is None) != (key is None):
        raise InputError("--certificate and --key go together: give both or neither")
    if certificate is None or key is None:
        if clients is not None:
            raise InputError("--client-ca is for HTTPS: give --certificate and --key too")
        return None
    from producers.gateway.tls import Certificate, CertificateError

    try:
        return Certificate(certificate, key, clients)
    except CertificateError as error:
        raise InputError(str(error)) from None


def _options(config: Path | None) -> "Options":
    from consumers.mutator.options import Options, read_options

    if config is None:
        return Options()
    try:
        return read_options(config.read_text())
    except OSError as error:
        raise InputError(f"--config {config} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--config {config}: {error}") from None
