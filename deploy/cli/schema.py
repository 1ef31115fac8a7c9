"""``gpubus schema``: the contracts that others build on, as files."""

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.errors import InputError

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


def _document(name: str) -> str:
    """Return one of the documents as indented JSON."""
    from importlib.metadata import version

    import orjson

    from deploy.contract.documents import asyncapi, json_schema

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


def render_crds() -> dict[str, str]:
    """Return the definitions as YAML by file name."""
    import yaml

    from schemas.kube.crd import definition
    from schemas.kube.kinds import KINDS

    return {f"{kind.plural}.yaml": yaml.safe_dump(definition(kind), sort_keys=False, width=120) for kind in KINDS}
