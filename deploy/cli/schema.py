"""``gpubus schema``: the contracts that others build on, as files."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from deploy.cli.errors import InputError

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ACCOUNT: Final = re.compile(rf"{_LABEL.pattern}/{_LABEL.pattern}(\.{_LABEL.pattern})*")
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HTTPS: Final = re.compile(r"https://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?(/[A-Za-z0-9._/-]*)?")
_HTTPS_SLASHES: Final = 2
"""Of a URL with no path."""

app = typer.Typer(
    help="""Write the contracts that others build on, as files.

    \b
    Example:
      gpubus schema crds | kubectl apply --server-side -f -
    """,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("crds")
def crds(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write a file for each kind there. [default: print all]")
    ] = None,
) -> None:
    """Print the custom resource definitions of the twelve kinds, made from the types that gpubus decodes.

    \b
    Example: gpubus schema crds --out deploy/crds
    """
    files = render_crds()
    if out is None:
        typer.echo("---\n".join(files.values()), nl=False)
        return
    if not out.is_dir():
        raise InputError(f"--out {out} is no directory: make it first")
    for name, text in files.items():
        (out / name).write_text(text)


@app.command("chart")
def chart(*, out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the files there.")]) -> None:
    """Write the files of the Helm chart that follow from the code.

    \b
    Example: gpubus schema chart --out deploy/chart/files
    """
    from deploy.contract.chart import chart_files

    if not out.is_dir():
        raise InputError(f"--out {out} is no directory: make it first")
    for name, text in chart_files().items():
        (out / name).write_text(text)


def _document(name: str) -> str:
    """Return one of the documents as indented JSON."""
    from importlib.metadata import version

    import orjson

    from deploy.contract.documents import asyncapi, json_schema

    if name == "openapi":
        from producers.gateway.openapi import openapi

        document = openapi(version("gpubus"))
    else:
        document = asyncapi(version("gpubus")) if name == "asyncapi" else json_schema()
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


@app.command("asyncapi")
def asyncapi_command() -> None:
    """Print the AsyncAPI 3 document: subjects, streams and payloads.

    \b
    Example: gpubus schema asyncapi > deploy/contract/asyncapi.json
    """
    typer.echo(_document("asyncapi"), nl=False)


@app.command("jsonschema")
def jsonschema_command() -> None:
    """Print the JSON Schema of every event.

    \b
    Example: gpubus schema jsonschema > deploy/contract/events.schema.json
    """
    typer.echo(_document("jsonschema"), nl=False)


@app.command("openapi")
def openapi_command() -> None:
    """Print the OpenAPI 3.1 document of the REST interface, `gpubus run gateway --rest`.

    \b
    Example: gpubus schema openapi > deploy/contract/openapi.json
    """
    typer.echo(_document("openapi"), nl=False)


@app.command("webhook")
def webhook_command(
    *,
    ca: Annotated[Path, typer.Option("--ca", metavar="FILE", help="PEM of who signed the gateway's certificate.")],
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAMESPACE/NAME", help="The gateway's Service.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Where the gateway is, if outside the cluster.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the configuration.")] = "gpubus",
    hami: Annotated[
        bool, typer.Option("--hami/--no-hami", help="Whether limits such as nvidia.com/gpu make a pod ours.")
    ] = True,
    auto_migration: Annotated[
        bool,
        typer.Option(
            "--auto-migration", help="Send native GPU limits of every vendor: autoMigration is in the mutator's file."
        ),
    ] = False,
    progressive_migration: Annotated[
        bool,
        typer.Option(
            "--progressive-migration",
            help="As --auto-migration, and pods that opt out too: they keep to nodes of their own.",
        ),
    ] = False,
    native: Annotated[
        list[str] | None,
        typer.Option(
            "--native",
            metavar="RESOURCE",
            help="With either: a resource of inUseResourceNames; repeat. [default: those of NVIDIA and AMD]",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="NAMESPACE", help="Send no pods of this namespace; repeat.")
    ] = None,
    timeout: Annotated[int, typer.Option("--timeout", help="Seconds that the API server waits, 1 to 30.")] = 10,
) -> None:
    """Print the configuration that has the API server send us the pods that ask for GPUs, and no others.

    The namespace of the Service is left out of it, and kube-system: what runs there must start without us.

    \b
    Example: gpubus schema webhook --service gpubus-system/gpubus-gateway --ca ca.crt | kubectl apply -f -
    """
    import yaml

    from producers.gateway.configuration import HAMI, Reach, webhook_configuration

    if (service is None) == (url is None):
        raise InputError("say where the gateway is: --service NAMESPACE/NAME, or --url for one outside the cluster")
    at = tuple((service or "").split("/"))
    if service is not None and (len(at) != 2 or not all(map(_LABEL.fullmatch, at))):  # noqa: PLR2004  namespace and name
        raise InputError(f"--service is {service!r}: write NAMESPACE/NAME")
    if url is not None and not _HTTPS.fullmatch(url):
        raise InputError(
            f"--url is {url!r}: write one such as https://10.0.0.7:9443; the API server takes https:// only"
        )
    for option, text in (("--name", name), *(("--exclude", one) for one in exclude or ())):
        if not _LABEL.fullmatch(text):
            raise InputError(f"{option} is {text!r}: use lower-case letters, digits and hyphens")
    excluded = tuple(sorted({"kube-system", *(exclude or ()), *(at[:1] if service is not None else ())}))
    moved = _native(native, wanted=auto_migration or progressive_migration)
    try:
        found = webhook_configuration(
            name,
            ca_bundle=_authority(ca),
            service=(at[0], at[1]) if service is not None else None,
            url=url or "",
            reach=Reach(
                resources=tuple(dict.fromkeys((*(HAMI if hami else ()), *moved))),
                beside=moved if progressive_migration else (),
                excluded_namespaces=excluded,
            ),
            timeout_s=timeout,
        )
    except OSError as error:
        raise InputError(f"--ca {ca} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(str(error)) from None
    typer.echo(yaml.safe_dump(found, sort_keys=False, width=120), nl=False)


def _native(resources: list[str] | None, *, wanted: bool) -> tuple[str, ...]:
    """Return the resources of native device plugins that make the API server send us a pod."""
    from producers.gateway.configuration import NATIVE

    if resources and not wanted:
        raise InputError(
            "--native is for --auto-migration or --progressive-migration: give one of them too, or neither"
        )
    for resource in resources or ():
        if not _RESOURCE.fullmatch(resource):
            raise InputError(f"--native is {resource!r}: write the name of a resource, such as nvidia.com/gpu")
    return tuple(resources or NATIVE) if wanted else ()


@app.command("guard")
def guard_command(
    *,
    account: Annotated[
        list[str] | None,
        typer.Option(
            "--account",
            metavar="NAMESPACE/NAME",
            help="Service account that binds or resizes pods; repeat. [default: those of deploy/rbac]",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the policy and its binding.")] = "gpubus-guard",
) -> None:
    """Print the policy that keeps what binding and admission write on pods from being changed by others.

    Containers take their GPUs from it. The API server judges this by itself, so it holds while no part of gpubus runs.

    \b
    Example: gpubus schema guard | kubectl apply -f -
    """
    import yaml

    from deploy.doctor.rights import accounts_of
    from producers.gateway.guard import WRITERS, guard

    if not _LABEL.fullmatch(name):
        raise InputError(f"--name is {name!r}: use lower-case letters, digits and hyphens")
    for one in account or ():
        if not _ACCOUNT.fullmatch(one):
            raise InputError(f"--account is {one!r}: write NAMESPACE/NAME of a service account")
    users = [f"system:serviceaccount:{one.replace('/', ':')}" for one in account or accounts_of(WRITERS)]
    typer.echo("---\n".join(yaml.safe_dump(one, sort_keys=False, width=120) for one in guard(name, users)), nl=False)


@app.command("priorityclasses")
def priority_classes_command() -> None:
    """Print the PriorityClasses that admission gives to pods of high and critical QoS that have none.

    Without them the API server refuses such pods.

    \b
    Example: gpubus schema priorityclasses | kubectl apply -f -
    """
    typer.echo(render_priority_classes(), nl=False)


@app.command("scheduler")
def scheduler_command(
    *,
    ca: Annotated[Path, typer.Option("--ca", metavar="FILE", help="PEM of who signed the gateway's certificate.")],
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Where the gateway is, such as https://10.0.0.7:9443.")
    ],
    name: Annotated[str, typer.Option("--name", help="What pods write in schedulerName.")] = "gpubus-extender",
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", metavar="FILE", help="Account of kube-scheduler. [default: its pod's own]")
    ] = "",
    client_certificate: Annotated[
        str,
        typer.Option(
            "--client-certificate", metavar="FILE", help="What kube-scheduler shows the gateway: where it has it."
        ),
    ] = "",
    client_key: Annotated[
        str, typer.Option("--client-key", metavar="FILE", help="Private key of that certificate: where it has it.")
    ] = "",
    lease: Annotated[
        str, typer.Option("--lease", metavar="NAMESPACE", help="Several replicas choose one by a lease there.")
    ] = "",
) -> None:
    """Print the configuration of a kube-scheduler of its own that places pods with GPUs over gpubus.

    It is for pods that need what only kube-scheduler knows: affinity to other pods, topology spread, volumes that wait. Admission
    sends them there if its option extenderScheduler has the same name. Start it with --config, and with
    --pod-max-in-unschedulable-pods-duration=10s: kube-scheduler does not hear of GPUs that become free.

    \b
    Example: gpubus schema scheduler --url https://10.0.0.7:9443 --ca ca.crt --client-certificate /tls/tls.crt
      --client-key /tls/tls.key > scheduler.yaml
    """
    import yaml

    from producers.gateway.scheduler import scheduler_configuration

    if not _HTTPS.fullmatch(url) or url.count("/") != _HTTPS_SLASHES:
        raise InputError(f"--url is {url!r}: write one such as https://10.0.0.7:9443, with no path")
    for option, text in (("--name", name), *((("--lease", lease),) if lease else ())):
        if not _LABEL.fullmatch(text):
            raise InputError(f"{option} is {text!r}: use lower-case letters, digits and hyphens")
    try:
        authority = _authority(ca)
    except OSError as error:
        raise InputError(f"--ca {ca} cannot be read: {error.strerror}") from None
    if bool(client_certificate) != bool(client_key):
        raise InputError("--client-certificate and --client-key go together: give both or neither")
    found = scheduler_configuration(
        name,
        ca_bundle=authority,
        url=url,
        kubeconfig=kubeconfig,
        lease=lease,
        client=(client_certificate, client_key) if client_key else None,
    )
    typer.echo(yaml.safe_dump(found, sort_keys=False, width=120), nl=False)


def _authority(file: Path) -> bytes:
    """Return a PEM file of certificates. What is in it becomes public: a private key must not."""
    import ssl

    pem = file.read_bytes()
    if b"PRIVATE KEY" in pem:
        raise InputError(
            f"--ca {file} holds a private key, which would become public: name the file with the certificate"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise InputError(
            f"--ca {file} holds no certificate: name a PEM file that begins with BEGIN CERTIFICATE"
        ) from None
    return pem


def render_crds() -> dict[str, str]:
    """Return the definitions as YAML by file name."""
    import yaml

    from schemas.kube.crd import definition
    from schemas.kube.kinds import KINDS

    return {f"{kind.plural}.yaml": yaml.safe_dump(definition(kind), sort_keys=False, width=120) for kind in KINDS}


def render_priority_classes() -> str:
    """Return the priority classes as YAML."""
    import yaml

    from deploy.contract.chart import priority_classes

    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    classes = [
        {**head, "metadata": {"name": one["name"]}, **{key: value for key, value in one.items() if key != "name"}}
        for one in priority_classes()
    ]
    return "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in classes)
