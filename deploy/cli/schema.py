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


def render_crds() -> dict[str, str]:
    """Return the definitions as YAML by file name."""
    import yaml

    from schemas.kube.crd import definition
    from schemas.kube.kinds import KINDS

    return {f"{kind.plural}.yaml": yaml.safe_dump(definition(kind), sort_keys=False, width=120) for kind in KINDS}
