"""What an operator writes for ``gpubus run agent``, checked: each problem names the option, its value and the fix."""

from pathlib import Path
from typing import TYPE_CHECKING

from deploy.cli.errors import InputError

if TYPE_CHECKING:
    from producers.agent.options import AgentOptions

MOST_XID = 65_535
MOST_MODELS_BYTES = 1 << 20

FLAGS = {
    "every_s": "every",
    "heartbeat_s": "heartbeat",
    "deadline_s": "deadline",
    "xid_settle_s": "xid-settle",
    "xid_quiet_s": "xid-quiet",
    "metrics_port": "metrics",
}
"""Options whose field has another name."""


def options(**given: object) -> "AgentOptions":
    """Check everything at once, as the options' type says, and what their text describes."""
    import msgspec

    try:
        from producers.agent.options import NVML, SIMULATED, AgentOptions
        from producers.agent.simulated import DescriptionError, describe
    except ImportError as error:
        raise InputError(f"the agent needs {error.name}: install gpubus[agent]") from None
    try:
        options = msgspec.convert(given, AgentOptions, dec_hook=_path)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`")
        raise InputError(
            f"--{FLAGS.get(field, field)} is {given.get(field)!r}: {reason[0].lower()}{reason[1:]}"
        ) from None
    if options.gpus.startswith(SIMULATED):
        try:
            describe(options.gpus.removeprefix(SIMULATED))
        except DescriptionError as error:
            raise InputError(f"--gpus: {error}") from None
    elif options.gpus != NVML:
        raise InputError(f"--gpus is {options.gpus!r}: use {NVML} or {SIMULATED}8xA100-80G")
    elif _missing("pynvml"):
        raise InputError("--gpus nvml needs the package nvidia-ml-py: install gpubus[agent]")
    return options


def _path(kind: type, value: object) -> object:
    return kind(str(value)) if issubclass(kind, Path) else value


def _missing(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is None


def xids(text: str) -> frozenset[int]:
    """Return the XIDs of ``--ignore-xids``."""
    numbers = [part.strip() for part in text.split(",")] if text.strip() else []
    for number in numbers:
        if not (number.isascii() and number.isdecimal() and int(number) <= MOST_XID):
            raise InputError(f"--ignore-xids has {number!r}: use XID numbers with commas, such as 13,31")
    return frozenset(map(int, numbers))


def models(file: Path | None) -> dict[str, int]:
    """Return the compute that ``--models`` states, in thousandths of a TFLOPS by model."""
    if file is None:
        return {}
    import msgspec

    from schemas.quantity import QuantityError, parse_milli

    try:
        if file.stat().st_size > MOST_MODELS_BYTES:
            raise InputError(
                f"--models {file} has more than {MOST_MODELS_BYTES} bytes: state one number for each model"
            )
        stated = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        return {model: parse_milli(text, field=f"TFLOPS of {model!r}") for model, text in stated.items()}
    except OSError as error:
        raise InputError(f"--models {file} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--models {file} is no JSON object of model names and TFLOPS in quotes: {error}") from None
    except QuantityError as error:
        raise InputError(f"--models {file}: {error}") from None
