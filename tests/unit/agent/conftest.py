"""The stand-in NVML, loaded once, and a source that uses it through the real ``pynvml``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from producers.agent.lane import Lane
from producers.agent.source import Source
from tests.nvml import library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled and known to this process."""
    built = library.build(tmp_path_factory.mktemp("nvml"))
    library.load(built)
    return built


@pytest.fixture
def play(
    nvml_library: Path,  # noqa: ARG001  loaded
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[dict[str, Any]], library.Scenario]:
    """Begin a scenario."""

    def begin(world: dict[str, Any]) -> library.Scenario:
        file = tmp_path / "scenario.json"
        monkeypatch.setenv("NVML_SCENARIO", str(file))
        return library.Scenario(file, world)

    return begin


@pytest.fixture
def lane() -> Iterator[Lane]:
    """A lane with a short deadline."""
    lane = Lane("test", 0.2)
    yield lane
    lane.close()


@pytest.fixture
def driver(lane: Lane, tmp_path: Path) -> Iterator[Source]:
    """The real source; not opened yet."""
    from producers.agent.nvml.driver import Driver

    source = Driver(lane, tflops_milli={}, sysfs=tmp_path / "sys")
    yield source
    source.close()
