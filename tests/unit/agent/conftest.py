"""The stand-in NVML, loaded once, and a source that uses it through the real ``pynvml``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.agent.lane import Lane
from producers.agent.source import Source
from tests.nvml.fixtures import nvml_library, play

__all__ = ["nvml_library", "play"]


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
