"""The filters that depend on what nodes and GPUs are, not on what is free: cached, since nodes change far less than load."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.eligibility import Eligibility, GpuKind, ScreenKey
from consumers.allocator.engine.rules import (
    GPU_COUNT,
    GPU_FILTERS,
    NO_INVENTORY,
    SILENT,
    STAGE_CODES,
    STAGE_SHIFT,
    STAGES,
)
from consumers.allocator.engine.table import Table

Ints = NDArray[np.int64]

_STATIC: Final = tuple(stage for stage in STAGE_CODES if stage >= GPU_COUNT)
_NO_GPU: Final = -1
_STANDS: Final = 0


def count_per_row(flags: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return how many flags of each row are set. Rows are whole 64-bit words (see ``Table``)."""
    words = flags.view(np.uint64)
    counts: NDArray[np.integer[Any]] = np.bitwise_count(words)
    return counts.reshape(-1) if words.shape[1] == 1 else counts.sum(axis=1, dtype=np.int64)


class Screen:
    """Outcome of the static filters for one :func:`~consumers.allocator.engine.eligibility.screen_key` on every row of a table.

    Attributes:
        stages: Per row the filter that refuses the node, shifted into verdict position; 0 where the row goes on.
        standing: Per row and slot whether the GPU stands; all False on refused rows.
        totals: Per stage the GPUs that fell to it.
        stages_met: The static filters that may have refused something, in their order.
        eligible: GPUs standing on the rows that go on.
        preference: Per row how much the pod prefers the node; None where it prefers none.
    """

    __slots__ = (
        "__weakref__", "_cursor", "_eligibility", "_epoch", "_fallen", "_kinds", "_outcomes", "_slots", "_table", "eligible",
        "preference", "stages", "stages_met", "standing", "totals",
    )  # fmt: skip

    def __init__(self, key: ScreenKey, table: Table, kinds: list[GpuKind]) -> None:
        self._eligibility = Eligibility(key)
        self._table = table
        self._kinds = kinds
        self._outcomes: Ints = np.array([_NO_GPU], dtype=np.int64)
        self._epoch = -1
        self._cursor = 0
        self.stages: Ints = np.zeros(0, dtype=np.int64)
        self.standing: NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)
        self._fallen: Ints = np.zeros((0, STAGES), dtype=np.int64)
        self.totals: list[int] = []
        self.stages_met: tuple[int, ...] = ()
        self.eligible = 0
        self.preference: Ints | None = None
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
            self.totals, self.eligible, self.preference = [0] * STAGES, 0, None
        else:
            rows = np.array(sorted(changed), dtype=np.intp)
        fallen, standing = self._sums(rows)
        self._apply(rows)
        fallen_now, standing_now = self._sums(rows)
        self.totals = (np.array(self.totals) + fallen_now - fallen).tolist()
        self.eligible += standing_now - standing
        self.stages_met = tuple(stage for stage in _STATIC if self.totals[stage] or stage not in GPU_FILTERS)

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
            outcomes = [self._eligibility.kind_stage(kind) for kind in new]
            self._outcomes = np.append(self._outcomes, outcomes)

    def _apply(self, rows: NDArray[np.intp]) -> None:
        count, stages = self._eligibility.count, self._judge_nodes(rows)
        if not count:
            self.stages[rows] = stages << STAGE_SHIFT
            return
        outcomes: Ints = self._outcomes[self._table.kinds[rows]]
        if self._eligibility.names_gpus:
            self._judge_gpus(rows, outcomes)
        left = count_per_row(outcomes != _NO_GPU).astype(np.int64)
        enough = left >= count
        fallen: Ints = np.zeros((len(rows), STAGES), dtype=np.int64)
        present = set(np.unique(outcomes).tolist())
        for stage in GPU_FILTERS:
            if stage not in present:
                continue
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

    def _judge_nodes(self, rows: NDArray[np.intp]) -> Ints:
        """Return the filter of whole nodes that refuses each row, or 0, and note how much the pod prefers it."""
        eligibility, hosts = self._eligibility, self._table.hosts
        stages: Ints = self._table.stages[rows].copy()
        if eligibility.rules is None and not self._table.tainted:
            if not eligibility.count:
                stages[(stages == NO_INVENTORY) | (stages == SILENT)] = 0
            return stages
        for place, row in enumerate(rows.tolist()):
            host = hosts[row]
            if host is None:
                continue
            stages[place] = eligibility.node_stage(host)
            liking = eligibility.preference(host)
            if liking and self.preference is None:
                self.preference = np.zeros(len(hosts), dtype=np.int64)
            if self.preference is not None:
                self.preference[row] = liking
        return stages

    def _judge_gpus(self, rows: NDArray[np.intp], outcomes: Ints) -> None:
        """Bring the filters of single GPUs into the outcomes of their kinds: the earlier filter counts."""
        for place, row in enumerate(rows.tolist()):
            host = self._table.hosts[row]
            for slot, device in enumerate(host.devices or () if host is not None else ()):
                outcomes[place, slot] = max(outcomes.item(place, slot), self._eligibility.own_stage(device))
