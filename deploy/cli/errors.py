"""What ends a command early, and the exit code each ending has.

0 done, 1 the answer is no, 2 the command line is wrong, 3 the bus could not answer, 70 a bug, 130 interrupted,
141 whoever read the answer went away, as shells have it.
Scripts can rely on these: a pod that nobody has decided about is not the same as a bus that is down.
"""

import errno
from typing import Final

NEGATIVE: Final = 1
BAD_INPUT: Final = 2
NO_BUS: Final = 3
BUG: Final = 70
INTERRUPTED: Final = 130
UNHEARD: Final = 141


class InputError(ValueError):
    """The command line is wrong. The message names the argument and the fix."""


class NotFoundError(Exception):
    """What was asked about does not exist, or the answer is no. The message says where to look instead."""


class BusUnavailableError(Exception):
    """The bus cannot be used: it is unreachable, stopped answering, or is not one of gpubus."""


def explain(error: Exception) -> tuple[str, int] | None:
    """Return one line for people and the exit code, or None for an error that nobody foresaw."""
    if isinstance(error, NotFoundError):
        return _line(str(error)), NEGATIVE
    if isinstance(error, InputError):
        return _line(str(error)), BAD_INPUT
    if isinstance(error, BusUnavailableError):
        return _line(str(error)), NO_BUS
    # Typer is free to carry its own copy of click, so its errors are known by what they offer, not by class.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        context = getattr(error, "ctx", None)
        hint = f"; see `{context.command_path} --help`" if context is not None else ""
        return _line(str(error.format_message()).rstrip(".") + hint), int(error.exit_code)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _line(f"the answer could not be written: {error.strerror}"), NO_BUS
    return _explain_imported(error)


def _explain_imported(error: Exception) -> tuple[str, int] | None:
    # Imported here because most runs end well and need none of it.
    from bus.errors import BusError
    from bus.kube.errors import KubeConfigError, KubeError
    from consumers.metrics.store import StoreError
    from deploy.local.monitoring import SettingError
    from deploy.local.server import LocalBusError
    from deploy.local.store import DirectoryError

    if isinstance(error, DirectoryError | KubeConfigError | SettingError):
        return _line(str(error)), BAD_INPUT
    if isinstance(error, BusError | KubeError | LocalBusError | StoreError):
        return _line(str(error)), NO_BUS
    from producers.simulator.csvfile import TraceError

    return (_line(str(error)), BAD_INPUT) if isinstance(error, TraceError) else None


def _line(text: str) -> str:
    return " ".join(text.split())
