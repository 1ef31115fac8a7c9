"""The filters that depend on what nodes and GPUs are, not on what is free: cached, since nodes change far less than load."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.rules import (
    FOREIGN,
    GPU_COUNT,
    GPU_FILTERS,
    MODEL,
    NO_INVENTORY,
    STAGE_SHIFT,
    STAGES,
    UNHEALTHY,
    VENDOR,
)
from consumers.allocator.engine.table import Table
from schemas.pod import GpuRequest

Ints = NDArray[np.int64]
GpuKind = tuple[str, str, bool, bool]
"""Vendor, model, healthy, used by a foreign allocator. Kinds are numbered from 1; kind 0 is a slot without a GPU."""

ScreenKey = tuple[int, tuple[str, ...], str]

_NO_GPU: Final = -1
_STANDS: Final = 0


def screen_key(request: GpuRequest) -> ScreenKey:
    """Return what two requests must share to meet the same screen."""
    return request.count, request.models, request.vendor


def count_per_row(flags: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return how many flags of each row are set. Rows are whole 64-bit words (see ``Table``)."""
    words = flags.view(np.uint64)
    counts: NDArray[np.integer[Any]] = np.bitwise_count(words)
    return counts.reshape(-1) if words.shape[1] == 1 else counts.sum(axis=1, dtype=np.int64)


class Screen:
    """Outcome of the static filters for one (count, models, vendor) on every row of a table.

    Attributes:
        stages: Per row the filter that refuses the node, shifted into verdict position; 0 where the row goes on.
        standing: Per row and slot whether the GPU stands; all False on refused rows.
        totals: Per stage the GPUs that fell to it.
        eligible: GPUs standing on the rows that go on.
    """

    __slots__ = (
        "__weakref__", "_count", "_cursor", "_epoch", "_fallen", "_kinds", "_models", "_outcomes", "_slots", "_table",
        "_vendor", "eligible", "stages", "standing", "totals",
    )  # fmt: skip

    def __init__(self, key: ScreenKey, table: Table, kinds: list[GpuKind]) -> None:
        self._count, models, self._vendor = key
        self._models = frozenset(models)
        self._table = table
        self._kinds = kinds
        self._outcomes: Ints = np.array([_NO_GPU], dtype=np.int64)
        self._epoch = -1
        self._cursor = 0
        self.stages: Ints = np.zeros(0, dtype=np.int64)
        self.standing: NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)
        self._fallen: Ints = np.zeros((0, STAGES), dtype=np.int64)
        self.totals: list[int] = []
        self.eligible = 0
        self._slots: dict[int, list[int]] = {}

    def refresh(self) -> None:
        """Apply what changed in the table's structure since the last call."""
        table = self._table
        log = table.structure
        if self._epoch == table.epoch and self._cursor == log.end:
            return
        changed = log.since(self._cursor) if self._epoch == table.epoch else None
        self._epoch, self._cursor = table.epoch, log.end
        self._learn_kinds()
        self._slots.clear()
        if changed is None:
            rows = np.arange(len(table.hosts))
            self.stages = np.zeros(len(rows), dtype=np.int64)
            self.standing = np.zeros((len(rows), table.width), dtype=np.bool_)
            self._fallen = np.zeros((len(rows), STAGES), dtype=np.int64)
            self.totals, self.eligible = [0] * STAGES, 0
        else:
            rows = np.array(sorted(changed), dtype=np.intp)
        fallen, standing = self._sums(rows)
        self._apply(rows)
        fallen_now, standing_now = self._sums(rows)
        self.totals = (np.array(self.totals) + fallen_now - fallen).tolist()
        self.eligible += standing_now - standing

    def slots(self, row: int) -> list[int]:
        """Return the slots of a row whose GPUs stand."""
        found = self._slots.get(row)
        if found is None:
            found = self._slots[row] = self.standing[row].nonzero()[0].tolist()
        return found

    def _sums(self, rows: NDArray[np.intp]) -> tuple[Ints, int]:
        return self._fallen[rows].sum(axis=0), int(self.standing[rows].sum())

    def _learn_kinds(self) -> None:
        new = self._kinds[len(self._outcomes) - 1 :]
        if new:
            self._outcomes = np.append(self._outcomes, [self._outcome(kind) for kind in new])

    def _outcome(self, kind: GpuKind) -> int:
        vendor, model, healthy, foreign = kind
        if not healthy:
            return UNHEALTHY
        if foreign:
            return FOREIGN
        if self._vendor and vendor != self._vendor:
            return VENDOR
        return MODEL if self._models and model not in self._models else _STANDS

    def _apply(self, rows: NDArray[np.intp]) -> None:
        count, stages = self._count, self._table.stages[rows].copy()
        if not count:
            # A pod without GPUs takes CPU and memory wherever they are; no GPU counts for or against it.
            stages[stages == NO_INVENTORY] = 0
            self.stages[rows] = stages << STAGE_SHIFT
            return
        outcomes = self._outcomes[self._table.kinds[rows]]
        left = count_per_row(outcomes != _NO_GPU).astype(np.int64)
        enough = left >= count
        fallen: Ints = np.zeros((len(rows), STAGES), dtype=np.int64)
        for stage in GPU_FILTERS:
            refused = count_per_row(outcomes == stage) * (stages == 0)
            fallen[:, stage] = refused
            left -= refused
            stages[(stages == 0) & enough & (left < count)] = stage
        stages[(stages == 0) & ~enough] = GPU_COUNT
        down = stages.nonzero()[0]
        fallen[down, stages[down]] += left[down]
        self._fallen[rows] = fallen
        self.standing[rows] = (outcomes == _STANDS) & (stages == 0)[:, np.newaxis]
        self.stages[rows] = stages << STAGE_SHIFT
