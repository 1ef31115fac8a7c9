"""NVML calls with their errors sorted: what a GPU cannot do, a GPU that is gone, a driver that is gone."""

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pynvml as nvml

from producers.agent.lane import Lane
from producers.agent.source import SourceError

T = TypeVar("T")

Handle = object
"""What NVML calls a device by; an opaque pointer."""

_CANNOT: Final = frozenset(
    {
        0,  # pynvml raises success itself where a list is empty
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NO_DATA,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        nvml.NVML_ERROR_DEPRECATED,
        nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        nvml.NVML_ERROR_TIMEOUT,  # no event so far
    }
)
"""This GPU, this driver or this process cannot answer that question; nothing is wrong with the GPU."""

_DRIVER: Final = frozenset(
    {
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Nothing can be asked of any GPU."""


class LostError(Exception):
    """One GPU does not answer; the message says how."""


class Session:
    """An initialised NVML, whose calls are made in ``lane``."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._open = False

    def open(self) -> None:
        """Initialise NVML, ending an earlier session first.

        Raises:
            SourceError: There is no driver, or it does not match the library.
        """
        self.close()
        self.root(nvml.nvmlInit)
        self._open = True

    def close(self) -> None:
        """Shut NVML down."""
        if self._open:
            self._open = False
            self.free(nvml.nvmlShutdown)

    def free(self, function: Callable[..., object], *arguments: object) -> None:
        """Give something back to the driver, which may have forgotten it already."""
        with contextlib.suppress(nvml.NVMLError):
            self._lane.call(function, *arguments)

    def root(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what a call answers that is about no GPU in particular.

        Raises:
            SourceError: It answers with an error.
        """
        try:
            return self._lane.call(function, *arguments)
        except nvml.NVMLError as error:
            raise SourceError(f"{function.__name__}: {error}") from None

    def ask(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what a call about one GPU answers.

        Raises:
            SourceError: The driver cannot be used.
            LostError: The GPU cannot be used, or cannot do what every GPU can.
        """
        try:
            return self._lane.call(function, *arguments)
        except nvml.NVMLError as error:
            raise _sorted(function.__name__, error) from None

    def may(self, otherwise: Any, function: Callable[..., Any], *arguments: object, vital: bool = False) -> Any:
        """Return what a call about one GPU answers, or ``otherwise`` when the GPU or the driver cannot answer it.

        Virtual machines and old drivers answer some questions with an unknown error all their life, so that counts against the
        GPU only where the question is ``vital``.

        Raises:
            SourceError: The driver cannot be used.
            LostError: The GPU cannot be used.
        """
        try:
            return self._lane.call(function, *arguments)
        except nvml.NVMLError as error:
            if _value(error) in _CANNOT or (_value(error) == nvml.NVML_ERROR_UNKNOWN and not vital):
                return otherwise
            raise _sorted(function.__name__, error) from None

    def memory(self, handle: Handle) -> tuple[int, int] | None:
        """Return the VRAM of a GPU or MIG device and what is used of it, in bytes; None if it has none of its own.

        The second version of the call does not count what the driver reserves as used.
        """
        found = self.may(None, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2, vital=True)
        if found is None:
            found = self.may(None, nvml.nvmlDeviceGetMemoryInfo, handle, vital=True)
        return None if found is None else (int(found.total), int(found.used))

    def fields(self, handle: Handle, wanted: list[tuple[int, int]]) -> list[int | None]:
        """Return the values of fields, each named by its number and scope; None for those that the GPU does not have."""
        answers = self.may(None, nvml.nvmlDeviceGetFieldValues, handle, wanted)
        if answers is None:
            return [None] * len(wanted)
        return [_number(answer) if answer.nvmlReturn == nvml.NVML_SUCCESS else None for answer in answers]


def _value(error: Exception) -> int:
    return int(getattr(error, "value", nvml.NVML_ERROR_UNKNOWN))


def _sorted(call: str, error: Exception) -> SourceError | LostError:
    kind = SourceError if _value(error) in _DRIVER else LostError
    return kind(f"{call}: {error}")


_MEMBERS: Final = {
    nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


def _number(answer: "nvml.c_nvmlFieldValue_t") -> int | None:
    member = _MEMBERS.get(answer.valueType)
    return None if member is None else int(getattr(answer.value, member))
