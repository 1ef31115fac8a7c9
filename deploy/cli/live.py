"""Live progress of a demo: a line that renews itself on a terminal, a line every few seconds elsewhere, both on stderr."""

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from deploy.local.demo import Snapshot

PLAIN_EVERY_S: Final = 2.0


class Live:
    """Shows snapshots while it is open."""

    def __init__(self, *, enabled: bool, pods: int) -> None:
        self._enabled = enabled
        self._pods = pods
        self._terminal = enabled and sys.stderr.isatty()
        self._last = 0.0
        self._note = ""
        self._width = 0

    def __enter__(self) -> Self:
        if self._enabled:
            sys.stderr.write("starting NATS and the allocators\n")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._terminal and self._width:
            sys.stderr.write("\n")

    def show(self, snapshot: "Snapshot") -> None:
        """Show how things stand."""
        if not self._enabled:
            return
        if snapshot.note != self._note:
            self._note = snapshot.note
            self._write(f"{snapshot.elapsed_s:5.1f} s  {snapshot.note}", keep=True)
        now = time.monotonic()
        if self._terminal or now - self._last >= PLAIN_EVERY_S:
            self._last = now
            self._write(self._line(snapshot), keep=not self._terminal)

    def _line(self, snapshot: "Snapshot") -> str:
        progress = snapshot.progress
        return (
            f"{snapshot.elapsed_s:5.1f} s  {progress.offered}/{self._pods} offered, {progress.allocated} allocated, "
            f"{progress.waiting} waiting, {progress.released} ended | GPUs {progress.gpu_allocation_percent:4.1f} % | "
            f"{snapshot.events_per_second:5.0f} events/s, {snapshot.decisions_per_second:4.0f} decisions/s, "
            f"p99 {progress.latency_p99_ms:.1f} ms"
        )

    def _write(self, line: str, *, keep: bool) -> None:
        if not self._terminal:
            sys.stderr.write(line + "\n")
            return
        sys.stderr.write("\r" + line.ljust(self._width) + ("\n" if keep else ""))
        self._width = 0 if keep else len(line)
        sys.stderr.flush()
