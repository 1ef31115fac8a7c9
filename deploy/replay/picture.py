"""Draws what was given out over time, one line for each set of rules."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from deploy.cli.errors import InputError
from deploy.replay.scenario import Result

FORMATS: Final = (".svg", ".png")


def check(path: Path) -> None:
    """Check that a picture can be drawn, before anything is read for it.

    Raises:
        InputError: The format is unknown, or matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"--picture {path}: the name must end with {' or '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InputError("--picture needs matplotlib: pip install 'gpubus[plot]'")


def draw(path: Path, results: Sequence[Result]) -> None:
    """Write the picture.

    Raises:
        InputError: The file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 6), layout="constrained")
    given, waiting = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    start = min((result.samples[0].time_ns for result in results if result.samples), default=0)
    for result in results:
        seconds = [(sample.time_ns - start) / 1e9 for sample in result.samples]
        given.plot(seconds, [sample.tflops_percent for sample in result.samples], label=result.rules, linewidth=1.2)
        if result is not results[0]:
            waiting.plot(seconds, [sample.waiting for sample in result.samples], label=result.rules, linewidth=1.2)
    given.set_ylabel("compute given, %")
    given.legend(fontsize="small")
    waiting.set_ylabel("pods waiting")
    waiting.set_xlabel("seconds")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--picture {path} cannot be written: {error.strerror}") from None
