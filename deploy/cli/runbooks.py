"""``gpubus alerts runbook``: what to do when an alert rings, from ``deploy/runbooks/alerts.md``."""

import re
from importlib.resources import files
from typing import Annotated

import typer

from deploy.cli.alerts import app
from deploy.cli.errors import NotFoundError

_SECTION = re.compile(r"^## (\w+)$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Return the text of each section by the name of its alert."""
    _, *parts = _SECTION.split(files("deploy").joinpath("runbooks/alerts.md").read_text())
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


@app.command("runbook")
def runbook(rule: Annotated[str, typer.Argument(metavar="RULE", help="Name of a built-in rule.")]) -> None:
    """Print what a built-in alert means, what to look at and what to do.

    \b
    Example:
      gpubus alerts runbook WorkerAllocationFailed
    """
    found = sections()
    if rule not in found:
        raise NotFoundError(f"no runbook for {rule!r}: there are {', '.join(found)}")
    typer.echo(found[rule])
