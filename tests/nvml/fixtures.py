"""Fixtures for whoever needs GPUs that do as they are told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nvml import library

Play = Callable[[dict[str, Any]], library.Scenario]


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
) -> Play:
    """Begin a scenario."""

    def begin(world: dict[str, Any]) -> library.Scenario:
        file = tmp_path / "scenario.json"
        monkeypatch.setenv("NVML_SCENARIO", str(file))
        return library.Scenario(file, world)

    return begin
