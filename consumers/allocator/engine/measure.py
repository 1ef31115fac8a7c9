"""How much of the free GPU is of use to the target workload: the fragmentation measure, as tables and in whole numbers.

The measure is that of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023). A node has free shares r of its GPUs, R in
sum. To a kind of pod that cannot run on it all of R is fragmented, and so it is to pods without GPUs; to a kind that can run
only the GPUs with less than its share. The node's fragmentation is the mean over the pods of the workload.

So what is *not* fragmented is, per kind that can run, the sum of the GPUs with at least its share; and that splits up. For
kinds of one GPU it is a sum over the GPUs of a term that depends on the GPU's free share and on the node's CPU alone: one
table. For kinds of several GPUs it depends on how many GPUs have the share, and how much they have: one table for all kinds
that ask for the same share and models. Everything is multiplied by the number of pods in the workload and stays an exact
integer, so that no result depends on the order of additions.
"""

from bisect import bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.workload import Workload
from schemas.cluster import PodKind
from schemas.pod import WHOLE

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]

SPAN: Final = WHOLE + 1
"""Shares within 0..1000."""


class Wide:
    """The kinds that ask for the same share of several GPUs.

    Attributes:
        share: The share of each GPU.
        models: Models they accept; empty accepts all.
        width: Most GPUs that one of them asks for.
        weights: ``[CPU level, GPUs with the share]``: pods that can run, flattened, ``width + 1`` a level.
        allowed: Per number of sort whether they accept the GPU.
    """

    __slots__ = ("allowed", "models", "share", "weights", "width")

    def __init__(self, share: int, models: tuple[str, ...], kinds: list[PodKind], levels: list[int]) -> None:
        self.share = share
        self.models = models
        self.width = max(kind.gpus for kind in kinds)
        weights: Ints = np.zeros((len(levels) + 1, self.width + 1), dtype=np.int64)
        for kind in kinds:
            weights[bisect_right(levels, kind.cpu_milli) :, kind.gpus :] += kind.pods
        self.weights: Ints = weights.ravel()
        self.allowed = [False]

    def useful(self, shares: list[int], sorts: list[int], level: int) -> int:
        """Return what is of use to these kinds, times pods."""
        least, allowed = self.share, self.allowed
        fit = [share for share, sort in zip(shares, sorts, strict=True) if share >= least and allowed[sort]]
        return sum(fit) * self.weights.item(level * (self.width + 1) + min(len(fit), self.width))

    def change(self, shares: list[int], sorts: list[int], level: int, slot: int, then: int) -> int:
        """Return by how much :meth:`useful` changes with one GPU."""
        if max(shares[slot], then) < self.share:
            return 0
        after = shares.copy()
        after[slot] = then
        return self.useful(after, sorts, level) - self.useful(shares, sorts, level)

    def flags(self, sorts: Ints, rows: Rows) -> Flags | None:
        """Return which GPUs of some rows they accept; None if it is enough that a GPU has the share."""
        # A slot without GPU has the share 0, which is what kinds ask for that state none.
        return np.array(self.allowed).take(sorts.take(rows, axis=0)) if self.models or not self.share else None

    def useful_on(self, levels: Rows, shares: Ints, allowed: Flags | None) -> Ints:
        """Return :meth:`useful` of several rows."""
        fit = self._fit(shares, allowed)
        useful: Ints = (fit * shares).sum(axis=1)
        useful *= self._weight(levels, fit.sum(axis=1))
        return useful

    def add_changed(
        self, drops: Ints, levels: Rows, shares: Ints, after: Ints, *, fitting: Flags, allowed: Flags | None
    ) -> None:
        """Add what is of use after the change of each single GPU that is ``fitting`` to ``drops``, for several rows."""
        fit, fit_after = self._fit(shares, allowed), self._fit(after, allowed)
        count, amount = fit.sum(axis=1), (fit * shares).sum(axis=1)
        now = self._weight(levels, count)
        now *= amount
        drops += now[:, np.newaxis]
        # Few changes touch a GPU that counts: those alone get a second look.
        touched = ((fit | fit_after) & fitting).ravel().nonzero()[0]
        if len(touched):
            rows, share, then = touched // shares.shape[1], shares.take(touched), after.take(touched)
            gone, come = fit.take(touched), fit_after.take(touched)
            new = self._weight(levels.take(rows), count.take(rows) - gone + come)
            new *= amount.take(rows) - gone * share + come * then
            new -= now.take(rows)
            drops.ravel()[touched] += new

    def _fit(self, shares: Ints, allowed: Flags | None) -> Flags:
        fit: Flags = shares >= self.share
        return fit if allowed is None else fit & allowed

    def _weight(self, levels: Rows, count: Ints) -> Ints:
        return self.weights.take(levels * (self.width + 1) + np.minimum(count, self.width))


class Measure:
    """The measure for one workload, for the sorts of GPU of one pool.

    Attributes:
        pods: Pods in the workload, by which every value is multiplied.
        wide: The kinds of several GPUs.
        table: What a GPU is of use to kinds of one GPU: rows of ``SPAN`` free shares.
        starts: Per number of sort where its rows begin in ``table``; row after row for one CPU level more.
    """

    def __init__(self, workload: Workload) -> None:
        self.pods = workload.pods
        self._levels = sorted({kind.cpu_milli for kind in workload.kinds if kind.gpus})
        self._level_column: Ints = np.array(self._levels, dtype=np.int64)
        self._singles = [kind for kind in workload.kinds if kind.gpus == 1]
        # The first block is that of kinds which accept any model, the only one where all do.
        self._blocks = {self._accepting(""): 0}
        self.table = self._block(self._accepting(""))
        groups: dict[tuple[int, tuple[str, ...]], list[PodKind]] = {}
        for kind in workload.kinds:
            if kind.gpus > 1:
                groups.setdefault((kind.share_milli, kind.models), []).append(kind)
        self.wide = [Wide(*key, kinds, self._levels) for key, kinds in groups.items()]
        self.starts = [0]
        self._uniform = True

    def learn(self, model: str) -> None:
        """Take in the next sort of GPU."""
        for wide in self.wide:
            wide.allowed.append(not wide.models or model in wide.models)
        accepting = self._accepting(model)
        start = self._blocks.get(accepting)
        if start is None:
            start = self._blocks[accepting] = len(self.table)
            self.table = np.concatenate((self.table, self._block(accepting)))
        self.starts.append(start)
        self._uniform = self._uniform and start == 0

    def _accepting(self, model: str) -> tuple[PodKind, ...]:
        return tuple(kind for kind in self._singles if not kind.models or model in kind.models)

    def _block(self, kinds: tuple[PodKind, ...]) -> Ints:
        pods: Ints = np.zeros((len(self._levels) + 1, SPAN), dtype=np.int64)
        for kind in kinds:
            pods[bisect_right(self._levels, kind.cpu_milli), kind.share_milli] += kind.pods
        table: Ints = pods.cumsum(axis=0).cumsum(axis=1) * np.arange(SPAN)
        return table.ravel()

    def level(self, cpu_milli: int) -> int:
        """Return how many of the CPU amounts that kinds ask for are within what is free."""
        return bisect_right(self._levels, max(cpu_milli, 0))

    def levels(self, cpu_milli: Ints) -> Rows:
        """Return :meth:`level` of many."""
        return self._level_column.searchsorted(np.maximum(cpu_milli, 0), side="right")

    def places(self, levels: Rows, shares: Ints, sorts: Ints, rows: Rows) -> Ints:
        """Return where in :attr:`table` to look for the shares of some rows."""
        places: Ints = shares + (levels * SPAN)[:, np.newaxis]
        if not self._uniform:
            places += np.array(self.starts).take(sorts.take(rows, axis=0))
        return places

    def useful_at(self, shares: list[int], sorts: list[int], level: int) -> int:
        """Return :meth:`useful` by CPU level."""
        item, starts, base, total = self.table.item, self.starts, level * SPAN, 0
        value, last = 0, -1
        for share, sort in zip(shares, sorts, strict=True):
            if share:
                place = starts[sort] + base + share
                if place != last:  # neighbours are often alike
                    value, last = item(place), place
                total += value
        for wide in self.wide:
            total += wide.useful(shares, sorts, level)
        return total

    def useful(self, shares: list[int], sorts: list[int], cpu_milli: int) -> int:
        """Return how much of a node's free GPU is of use to the workload, in thousandths of a GPU times pods."""
        return self.useful_at(shares, sorts, self.level(cpu_milli))

    def fragmented(self, shares: list[int], sorts: list[int], cpu_milli: int) -> int:
        """Return how much of a node's free GPU is fragmented, in thousandths of a GPU times pods."""
        return self.pods * sum(shares) - self.useful(shares, sorts, cpu_milli)
