"""Pods that are written alike, as a controller's are, ask for the same: what one asks for is read once. Pure."""

from collections.abc import Callable
from typing import Final

import msgspec

from schemas.dialects import PodSpecView
from schemas.pod import GpuRequest

MOST: Final = 1024
"""Different pods that are remembered: a request takes about two kilobytes, and pods come in bursts of few controllers."""

_encoder = msgspec.msgpack.Encoder()


class Alike:
    """Requests by what they were read from, for as long as nothing that is set changes."""

    def __init__(self) -> None:
        self._known: dict[bytes, GpuRequest | None] = {}

    def get(self, view: PodSpecView, read: Callable[[PodSpecView], GpuRequest | None]) -> GpuRequest | None:
        """Return what ``read`` makes of a pod, which it must make of nothing else.

        Raises:
            Exception: What ``read`` raises; it is asked again the next time.
        """
        key = _encoder.encode(view)
        if key in self._known:
            return self._known[key]
        if len(self._known) >= MOST:
            self._known.clear()
        found = self._known[key] = read(view)
        return found
