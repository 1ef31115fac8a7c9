"""Where one request shape fits, kept up to date by looking only at the nodes that changed since it was last asked.

Clusters see few distinct shapes, and between two pods of one shape few nodes change. So each (shape, policy) keeps its
verdict on every row, the counts that explain a refusal, and the sort key that picks the winner. What it answers is a pure
function of the table: a fit that has lived long and one made just now agree, and the property tests hold it to that.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.crew import Crew
from consumers.allocator.engine.host import Host, Judged
from consumers.allocator.engine.need import SHORT, Need, sifted
from consumers.allocator.engine.ranking import REFUSED, Keys, Order
from consumers.allocator.engine.rules import (
    COMPUTE,
    COMPUTE_SHIFT,
    COUNT_MASK,
    COUNTS_MASK,
    FITS,
    REFUSAL,
    STAGE_CODES,
    STAGE_SHIFT,
    STAGES,
    WORKERS,
)
from consumers.allocator.engine.screen import Screen, count_per_row
from consumers.allocator.engine.table import ENOUGH_COMPUTE, ENOUGH_GPUS, ENOUGH_VRAM, Table
from consumers.allocator.engine.together import Together
from schemas.decision import Candidate, ContainerGrant, FilterReport, GpuGrant

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]

EXAMPLES: Final = 3
FEW_ROWS: Final = 30
"""Up to here a plain loop over the rows beats the fixed cost of array operations (measured)."""

KIN_PER_NODE: Final = 48
"""Verdicts that a node remembers at most, so that many kinds of request cost many nodes little memory."""

_TOGETHER: Final = (WORKERS + 1) << STAGE_SHIFT
"""The least verdict of a filter before those of whole nodes that come last."""
_ROW: Final = 1 << STAGE_SHIFT
_NO_NAMES: Final[tuple[str, ...]] = ()
_NOWHERE: Final = -1

PREFERRED: Final = "preferred"
"""The part of a candidate's score that says how much the pod itself prefers the node. It decides before the policy."""


class Kin:
    """What requests have in common that differ in CPU and memory alone: the same GPUs fit them, so one looks for all.

    Clusters see few kinds of GPU request, and many sizes of what comes with it. So a node remembers what came of its GPUs by
    kin, until they change. Only its identity matters.
    """

    __slots__ = ("__weakref__",)


class Fit:
    """Verdicts of one request shape under one policy on every row of a pool's table.

    Attributes:
        need: The request shape.
        screen: The static filters' outcome that the verdicts build on.
        order: The policy's order of nodes.
    """

    __slots__ = (
        "_counts", "_cursor", "_epoch", "_examples", "_horizon", "_keys", "_kin", "_said", "_sifted", "_sifted_in_all", "_table",
        "_verdicts", "need", "order", "screen",
    )  # fmt: skip

    def __init__(self, need: Need, table: Table, screen: Screen, order: Order, kin: Kin) -> None:
        self.need = need
        self._kin = kin
        self.screen = screen
        self.order = order
        self._table = table
        self._epoch = -1
        self._cursor = 0
        self._verdicts: Ints = np.zeros(0, dtype=np.int64)
        self._keys: Keys = np.zeros(0, dtype=np.int32)
        # Per stage the rows that end there, and their GPUs with enough compute and with enough VRAM too, packed.
        self._counts = [0] * STAGES
        # Per row the GPUs that fell for who is on them, packed, and their sum; None as long as nobody is on any who could matter.
        self._sifted: Ints | None = None
        self._sifted_in_all = 0
        # First refused nodes per stage, None when not known; and the last row that could change them.
        self._examples: list[tuple[str, ...] | None] = [None] * STAGES
        self._horizon = [_NOWHERE] * STAGES
        self._said: dict[int, FilterReport] = {}

    @property
    def fitting_nodes(self) -> int:
        """How many nodes the pod fits on."""
        return self._counts[FITS] >> STAGE_SHIFT

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        table = self._table
        self.screen.refresh()
        self.order.refresh()
        log = table.changes
        if self._epoch == table.epoch:
            if self._cursor == log.end:
                return
            changed = log.since(self._cursor)
        else:
            changed = None
        self._epoch, self._cursor = table.epoch, log.end
        if self._sifted is None and table.marked & self.need.marks:
            self._sifted = np.zeros(len(table.hosts), dtype=np.int64)
        if changed is None or 2 * len(changed) > len(table.hosts):
            self._rebuild()
        elif len(changed) <= FEW_ROWS:
            self._update_few(changed)
        else:
            self._update_many(np.fromiter(changed, dtype=np.intp, count=len(changed)))

    def stages(self, rows: Rows) -> Ints:
        """Return the stage at which each of some rows ends."""
        found: Ints = self._verdicts.take(rows) >> STAGE_SHIFT
        return found

    def best(self, count: int, among: Rows | None = None) -> list[int]:
        """Return the best rows that fit, at most ``count``, best first: those that the pod prefers, then the policy's order.

        Args:
            count: How many.
            among: The only rows that count; by default all.
        """
        keys, fitting, preference = self._keys, self._counts[FITS] >> STAGE_SHIFT, self.screen.preference
        if among is not None:
            keys = np.full(len(self._keys), REFUSED, dtype=self.order.dtype)
            keys[among] = self._keys[among]
            fitting = int((keys > REFUSED).sum())
        count = min(count, fitting)
        if preference is None:
            return self.order.best(keys, count)
        fits = keys > REFUSED
        rows: list[int] = []
        for liking in sorted(set(preference[fits].tolist()), reverse=True):
            alike = fits & (preference == liking)
            few = min(count - len(rows), int(alike.sum()))
            rows += self.order.best(np.where(alike, keys, self.order.dtype(REFUSED)), few)
            if len(rows) == count:
                break
        return rows

    def candidates(self, rows: list[int]) -> tuple[Candidate, ...]:
        """Return the rows of the last :meth:`best` as a decision names them."""
        found, preference = tuple(map(self.order.candidate, rows)), self.screen.preference
        if preference is None:
            return found
        return tuple(
            msgspec.structs.replace(one, parts={**one.parts, PREFERRED: liking}) if liking else one
            for one, liking in zip(found, preference[rows].tolist(), strict=True)
        )

    def reports(self) -> tuple[FilterReport, ...]:
        """Return what each filter removed, in filter order, without those that removed nothing."""
        need, totals, counts, said = self.need, self.screen.totals, self._counts, self._said
        everywhere = sum(counts)
        computable, fitting = (everywhere >> COMPUTE_SHIFT) & COUNT_MASK, everywhere & COUNT_MASK
        joinable = self.screen.eligible
        sieves: tuple[int, ...] = ()
        if self._sifted_in_all:
            totals, sieves = totals.copy(), need.sieve_stages
            for stage in sieves:
                totals[stage] = sifted(self._sifted_in_all, stage)
                joinable -= totals[stage]
        amounts = need.amounts
        found = []
        for stage in (*self.screen.stages_met, *sieves, *need.stages):
            count, gpus = counts[stage], totals[stage]
            if not count and not gpus and stage not in amounts:
                continue
            nodes = count >> STAGE_SHIFT
            gpus += count & COUNT_MASK
            if stage == COMPUTE:
                gpus = joinable - computable
            elif stage == amounts[1]:
                gpus = computable - fitting
            if not (nodes or gpus):
                continue
            names = self._examples[stage] if nodes else _NO_NAMES
            if names is None:
                names = self._find_examples(stage, nodes)
            report = said.get(stage)  # most filters remove what they removed from the last pod of this shape
            if report is None or report.nodes != nodes or report.gpus != gpus or report.examples is not names:
                report = said[stage] = FilterReport(reason=STAGE_CODES[stage], nodes=nodes, gpus=gpus, examples=names)
            found.append(report)
        return tuple(found)

    def grants(self, row: int, host: Host) -> tuple[tuple[GpuGrant, ...], tuple[ContainerGrant, ...]]:
        """Return what the policy gives of a row that the request fits on, in all and by container where they ask themselves."""
        need = self.need
        if not need.count:
            return (), ()
        if need.together is None:
            fitting = self._judged(row, host)[1]
            return tuple([need.grant(host, slot) for slot in self.order.choose(row, host, fitting, need.count)]), ()
        slots = self.screen.slots(row)
        if host.marked & need.marks:
            slots = need.sift(host, slots)[0]
        _, fitting = need.fitting(host, slots)
        if need.crew is not None:
            return need.crew.give(host, self.order.prefer(row, host, fitting, need.count))
        assert isinstance(need.together, Together)  # noqa: S101
        _, left = need.together.narrow(host, fitting)
        chosen = need.together.choose(host, self.order.prefer(row, host, left, need.count))
        return tuple(need.grant(host, slot) for slot in chosen), ()

    def _find_examples(self, stage: int, nodes: int) -> tuple[str, ...]:
        matches = (self._verdicts >> STAGE_SHIFT) == stage
        rows: list[int] = []
        start = 0
        # `argmax` of booleans stops at the first True.
        for _ in range(min(EXAMPLES, nodes)):
            start += int(matches[start:].argmax())
            rows.append(start)
            start += 1
        self._horizon[stage] = rows[-1] if len(rows) == EXAMPLES else len(matches)
        examples = tuple(self._table.names[row] for row in rows)
        self._examples[stage] = examples
        return examples

    def _verdicts_on(self, rows: Rows) -> tuple[Ints, NDArray[np.bool_]]:
        """Return :meth:`Need.judge` and the screen on some rows, as array operations."""
        need, table = self.need, self._table
        limits: Ints = table.limits.take(rows, axis=0)
        fitting: NDArray[np.bool_] = self.screen.standing.take(rows, axis=0)
        if not need.count:
            limits[:, : ENOUGH_GPUS + 1] = 0
            verdicts: Ints = SHORT.take((limits < need.limits).argmax(axis=1))
            return np.maximum(verdicts, self.screen.stages.take(rows), out=verdicts), fitting
        stages: Ints | None = None
        if self._sifted is not None:
            before = int(self._sifted.take(rows).sum())
            self._sifted[rows], stages = need.sift_rows(table.marks.take(rows, axis=0), fitting)
            self._sifted_in_all += int(self._sifted.take(rows).sum()) - before
        fitting &= getattr(table, need.compute_column).take(rows, axis=0) >= need.compute
        computable = count_per_row(fitting)
        if need.portion is None:
            fitting &= getattr(table, need.vram_column).take(rows, axis=0) >= need.vram
        else:
            self._keep_partitions(rows, fitting)
        fits = count_per_row(fitting)
        limits[:, ENOUGH_COMPUTE] = computable
        limits[:, ENOUGH_VRAM : ENOUGH_GPUS + 1] = fits[:, np.newaxis]
        verdicts = need.short.take((limits < need.limits).argmax(axis=1))
        if stages is not None:
            np.maximum(verdicts, stages, out=verdicts)
        verdicts += np.left_shift(computable, COMPUTE_SHIFT, dtype=np.int64)
        verdicts += fits
        # Stages count down in filter order, and no GPU stands on a screened row: the larger verdict is the earlier.
        np.maximum(verdicts, self.screen.stages.take(rows), out=verdicts)
        if need.narrowing is not None:
            self._narrow(need.narrowing, rows, verdicts, fitting)
        return verdicts, fitting

    def _keep_partitions(self, rows: Rows, fitting: NDArray[np.bool_]) -> None:
        """Take the GPUs out of ``fitting`` that have no partition for the pod."""
        for place in count_per_row(fitting).nonzero()[0].tolist():
            host = self._table.hosts[rows[place]]
            assert host is not None  # noqa: S101
            _, left = self.need.fitting(host, fitting[place].nonzero()[0].tolist())
            fitting[place] = False
            fitting[place, left] = True

    def _narrow(self, together: Together | Crew, rows: Rows, verdicts: Ints, fitting: NDArray[np.bool_]) -> None:
        """Apply the filters that look at a node's GPUs together to the rows that no earlier filter refuses."""
        for place in (verdicts < _TOGETHER).nonzero()[0].tolist():
            host = self._table.hosts[rows[place]]
            assert host is not None  # noqa: S101
            stage, left = together.narrow(host, fitting[place].nonzero()[0].tolist())
            fitting[place] = False
            fitting[place, left] = True
            if stage:
                verdicts[place] = (stage << STAGE_SHIFT) | (verdicts[place] & COUNTS_MASK)

    def _rebuild(self) -> None:
        rows = np.arange(len(self._table.hosts))
        if self._sifted is not None:
            self._sifted, self._sifted_in_all = np.zeros(len(rows), dtype=np.int64), 0
        verdicts, fitting = self._verdicts_on(rows)
        self._verdicts = verdicts
        self._keys = np.full(len(rows), REFUSED, dtype=self.order.dtype)
        self._set_keys(rows, verdicts, fitting)
        self._counts = [0] * STAGES
        self._count(verdicts, (verdicts & COUNTS_MASK) + _ROW)
        self._examples = [None] * STAGES
        self._horizon = [_NOWHERE] * STAGES

    def _set_keys(self, rows: Rows, verdicts: Ints, fitting: NDArray[np.bool_]) -> None:
        self._keys[rows] = REFUSED
        places = (verdicts < REFUSAL).nonzero()[0]
        if len(places):
            rows = rows.take(places)
            self._keys[rows] = self.order.keys(rows, fitting.take(places, axis=0))

    def _update_many(self, rows: Rows) -> None:
        old = self._verdicts.take(rows)
        new, fitting = self._verdicts_on(rows)
        self._verdicts[rows] = new
        self._set_keys(rows, new, fitting)
        both = np.concatenate((new, old))
        packed = (both & COUNTS_MASK) + _ROW
        packed[len(rows) :] *= -1
        self._count(both, packed)
        # Only rows up to the farthest example can change an example, and that is mostly none of them.
        near = (((new ^ old) >= REFUSAL) & (rows <= max(self._horizon))).nonzero()[0]
        if len(near):
            stages = ((old.take(near) >> STAGE_SHIFT).tolist(), (new.take(near) >> STAGE_SHIFT).tolist())
            for row, left, entered in zip(rows.take(near).tolist(), *stages, strict=True):
                self._forget_examples(row, left, entered)

    def _count(self, verdicts: Ints, packed: Ints) -> None:
        sums = np.bincount(verdicts >> STAGE_SHIFT, weights=packed, minlength=STAGES)
        for stage in sums.nonzero()[0].tolist():
            self._counts[stage] += int(sums.item(stage))

    def _update_few(self, rows: set[int]) -> None:
        verdicts, keys, stages, counts = self._verdicts, self._keys, self.screen.stages, self._counts
        hosts, kin, need, key_of = self._table.hosts, self._kin, self.need, self.order.key
        workers, cpu, memory = need.workers, need.cpu, need.memory
        for row in rows:
            new, old = stages.item(row), verdicts.item(row)
            key, fallen = REFUSED, 0
            if not new:
                host = hosts[row]
                assert host is not None  # noqa: S101
                new, fitting, fallen = host.judged.get(kin) or self._judged(row, host)
                if new < REFUSAL:
                    # `Need.shortage`, its usual answer written out.
                    if (
                        host.cpu_free >= cpu
                        and host.memory_free >= memory
                        and host.pods_free > 0
                        and host.workers_free >= workers
                    ):
                        key = key_of(row, host, fitting)
                    else:
                        new |= need.shortage(host) << STAGE_SHIFT
            keys[row] = key
            if self._sifted is not None:
                self._sifted_in_all += fallen - self._sifted.item(row)
                self._sifted[row] = fallen
            if new == old:
                continue
            verdicts[row] = new
            left, entered = old >> STAGE_SHIFT, new >> STAGE_SHIFT
            counts[left] -= _ROW + (old & COUNTS_MASK)
            counts[entered] += _ROW + (new & COUNTS_MASK)
            if left != entered:
                self._forget_examples(row, left, entered)

    def _judged(self, row: int, host: Host) -> Judged:
        """Return what the filters of GPUs make of a row that no earlier filter refuses: what kin found, or what is found now."""
        found = host.judged.get(self._kin)
        if found is not None:
            return found
        need, slots, fallen, refusal = self.need, self.screen.slots(row), 0, 0
        if host.marked & need.marks:
            slots, fallen, refusal = need.sift(host, slots)
        verdict, fitting = need.judge_gpus(host, slots)
        if refusal:
            verdict = refusal << STAGE_SHIFT
        if len(host.judged) >= KIN_PER_NODE:
            host.judged.clear()
        host.judged[self._kin] = found = (verdict, fitting, fallen)
        return found

    def _forget_examples(self, row: int, left: int, entered: int) -> None:
        for stage in (left, entered):
            if row <= self._horizon[stage]:
                self._examples[stage] = None
                self._horizon[stage] = _NOWHERE
