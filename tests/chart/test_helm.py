"""A second opinion: the helm binary renders what its engine does in this process, complains of nothing, and refuses the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import helm
from tests.chart.render import CHART, rendered
from tests.chart.test_rendering import EVERY, PASSIVE, REFUSED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("values", [*EVERY.values(), PASSIVE], ids=[*EVERY, "passive"])
def test_it_renders_the_same_objects(values: dict[str, Any], tmp_path: Path) -> None:
    objects, _ = rendered(values)
    assert helm.template(values, tmp_path) == objects


@pytest.mark.parametrize("name", ["default", "production+000", "production+004"])
def test_it_finds_nothing_to_complain_of(name: str, tmp_path: Path) -> None:
    said = helm.run("lint", "--strict", str(CHART), "-f", "-", home=tmp_path, stdin=yaml.safe_dump(EVERY[name]))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(("values", "says"), REFUSED[::4])
def test_it_refuses_what_cannot_be_meant(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    arguments = ("template", "gpubus", str(CHART), "-f", "-")
    assert says in helm.run(*arguments, home=tmp_path, stdin=yaml.safe_dump(values), fails=True)


def test_a_packed_chart_has_all_that_the_folder_points_to(tmp_path: Path) -> None:
    """``deploy/chart`` links to the kinds and the rights: an archive must hold them themselves."""
    helm.run("package", str(CHART), "--destination", str(tmp_path), home=tmp_path)
    (archive,) = tmp_path.glob("gpubus-*.tgz")
    assert "customresourcedefinitions" not in helm.run("template", "a", str(archive), home=tmp_path)
    kinds = list(yaml.safe_load_all(helm.run("show", "crds", str(archive), home=tmp_path)))
    assert len([one for one in kinds if one]) == len(list((CHART / "crds").glob("*.yaml")))
    assert helm.run("template", "a", str(archive), home=tmp_path) == helm.run(
        "template", "a", str(CHART), home=tmp_path
    )
