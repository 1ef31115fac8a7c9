"""The installation guide speaks of values that the chart has, and of commands that there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.main import main
from tests.chart.render import CHART

GUIDE = (CHART.parent / "docs" / "install.md").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def known(key: str) -> bool:
    """Whether values have a key, written with dots."""
    at: dict[str, Any] = SCHEMA
    for part in key.split("."):
        at = SCHEMA["$defs"][at["$ref"].rpartition("/")[2]] if "$ref" in at else at
        if part not in at.get("properties", {}):
            return at.get("additionalProperties", True) is not False
        at = at["properties"][part]
    return True


KEYS = sorted(
    key
    for key in set(re.findall(r"`([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)+)", GUIDE))
    if key.split(".")[0] in SCHEMA["properties"]
)


def test_values_that_the_guide_names_are_there() -> None:
    assert len(KEYS) > 15
    assert [key for key in KEYS if not known(key)] == []


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"gpubus ((?:schema crds|alerts lint|[a-z]+))", GUIDE)) - {"does", "deploy"})
)
def test_commands_that_the_guide_names_are_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_files_that_the_guide_names_are_there() -> None:
    for name in re.findall(r"deploy/[a-z/-]+(?:\.yaml|chart)", GUIDE):
        assert (CHART.parents[1] / Path(name)).exists(), name
