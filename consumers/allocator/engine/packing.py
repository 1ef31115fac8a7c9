"""``PackingValue``: the node that loses least of its worth to the pods that are expected.

Score = value after - value before - 20 for each wholly free GPU of the node before - the asked share times the scarcity of the
node's model, in thousandths of a GPU, halves rounded up; what lies within one step of 50 is equal. The value is that of
:class:`~consumers.allocator.engine.value.Value`, scarcity and guard are those of :mod:`~consumers.allocator.engine.yard`.
The charge makes pods share nodes that are in use already: without it whole GPUs are broken all over the pool. Among equals the
node with the least free GPU is taken, then the one with the least free CPU, then the first by name.

A pod with one GPU takes the GPU in use that costs least value, or the first idle one if that costs less still. A pod with
several takes those with the smallest free share, the first of equals.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.keys import NOT_GUARDED, step_bits, steps_bits
from consumers.allocator.engine.ranking import Keys, largest
from consumers.allocator.engine.supply import Ask
from consumers.allocator.engine.value import GRAIN_BITS, HALF
from consumers.allocator.engine.yard import Yard
from schemas.decision import Candidate
from schemas.pod import WHOLE, GpuRequest

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]
Outcome = tuple[int, int]
"""Gain of value in thousandths of a GPU, and the slot of a pod with one GPU, else -1."""

IDLE_CHARGE: Final = 20
"""Thousandths of a GPU that a node's score loses for each of its wholly free GPUs."""

_NEVER: Final = -(1 << 40)


class Packing:
    """Order of nodes for one shape of request."""

    __slots__ = ("_ask", "_count", "_cpu", "_gains", "_penalties", "_slots", "_yard", "dtype")

    def __init__(self, request: GpuRequest, yard: Yard) -> None:
        self.dtype: type[np.signedinteger[Any]] = np.int64
        self._yard = yard
        self._ask = Ask(request, yard)
        self._count = request.count
        self._cpu = request.cpu_milli
        self._penalties: Ints = np.zeros(0, dtype=np.int64)
        self._resize(0)

    def _resize(self, rows: int) -> None:
        # Per row the outcome, as its key was computed.
        self._gains: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self._slots: NDArray[np.int16] = np.zeros(rows, dtype=np.int16)

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        self._yard.refresh()
        if len(self._gains) != len(self._yard.rows):
            self._resize(len(self._yard.rows))

    def best(self, keys: Keys, count: int) -> list[int]:
        """Return the rows of the best score. What depends on the pool as a whole is brought in here and never cached."""
        yard = self._yard
        if yard.scarce and count:
            self._penalties = self._penalties_now()
            scores = self._gains - IDLE_CHARGE * yard.idle - self._penalties.take(yard.first)
            keys = np.where(keys >= 0, yard.tails | steps_bits(scores), keys)
        rows = largest(keys, count)
        if any(yard.rows[row].reach for row in rows) and (least := yard.guard(self._count, self._cpu)):
            return largest(np.where((yard.reach >= least) & (keys >= 0), keys & ~NOT_GUARDED, keys), count)
        return rows

    def _penalties_now(self) -> Ints:
        """Return what scarcity takes off the score, by number of sort."""
        asked = zip(*self._ask.of_sorts(), self._yard.scarcity(), strict=True)
        return np.array([self._count * min(max(c, v), WHOLE) * scarcity // WHOLE for c, v, scarcity in asked])

    def candidate(self, row: int) -> Candidate:
        """Return a row, one of the last :meth:`best`, with its score and the parts of it, in thousandths of a GPU."""
        yard = self._yard
        now = yard.rows[row]
        penalty = self._penalties.item(now.sort) if yard.scarce else 0
        parts = {"value": self._gains.item(row), "idle": -IDLE_CHARGE * now.idle, "scarcity": -penalty}
        return Candidate(node=yard.table.names[row], score=sum(parts.values()), parts=parts)

    def choose(self, row: int, _host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the slots to take."""
        if count == 1:
            return [self._slots.item(row)]
        shares = self._yard.slots[row][0]
        return sorted(sorted(fitting, key=shares.__getitem__)[:count])

    def prefer(self, row: int, _host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the slots in the order in which a pod with several GPUs takes them; that of a pod with one comes first."""
        shares, first = self._yard.slots[row][0], self._slots.item(row) if count == 1 else -1
        return sorted(fitting, key=lambda slot: (slot != first, shares[slot]))

    def key(self, row: int, host: Host, fitting: list[int]) -> int:
        """Return the key of a row."""
        gain, slot = self._try_one(row, host, fitting) if self._count == 1 else self._try(row, host, fitting)
        self._gains[row], self._slots[row] = gain, slot
        now = self._yard.rows[row]
        return now.tail | step_bits(gain - IDLE_CHARGE * now.idle)

    def _gain(self, row: int, host: Host, worth: int, idle: int) -> int:
        value, now = self._yard.value, self._yard.rows[row]
        after = value.of(worth, idle, host.cpu_free - self._cpu, value.accepting[now.sort])
        return after - now.value + HALF >> GRAIN_BITS

    def _try(self, row: int, host: Host, fitting: list[int]) -> Outcome:
        worth_of, now = self._yard.value.worth, self._yard.rows[row]
        shares, sorts = self._yard.slots[row]
        worth, idle = now.worth, now.idle
        for slot in self.choose(row, host, fitting, self._count):
            then = self._ask.left(host, slot, sorts[slot])
            worth += worth_of[then] - worth_of[shares[slot]]
            idle -= then < shares[slot] == WHOLE
        return self._gain(row, host, worth, idle), -1

    def _try_one(self, row: int, host: Host, fitting: list[int]) -> Outcome:
        worth_of, left, now = self._yard.value.worth, self._ask.left, self._yard.rows[row]
        shares, sorts = self._yard.slots[row]
        used = fresh = -1
        best = gain = 0
        for slot in fitting:
            share = shares[slot]
            if share == WHOLE:
                if fresh < 0:
                    fresh = slot
                continue
            change = worth_of[left(host, slot, sorts[slot])] - worth_of[share]
            if used < 0 or change > best:
                best, used = change, slot
        if used >= 0:
            gain = self._gain(row, host, now.worth + best, now.idle)
            if fresh < 0:
                return gain, used
        then = left(host, fresh, sorts[fresh])
        other = self._gain(row, host, now.worth + worth_of[then] - worth_of[WHOLE], now.idle - (then < WHOLE))
        return (gain, used) if used >= 0 and gain >= other else (other, fresh)

    def keys(self, rows: Rows, fitting: Flags) -> Keys:
        """Return the keys of several rows: :meth:`key` as array operations."""
        gains, slots = self._try_one_on(rows, fitting) if self._count == 1 else self._try_on(rows, fitting)
        self._gains[rows], self._slots[rows] = gains, slots
        gains -= IDLE_CHARGE * self._yard.idle.take(rows)
        return self._yard.tails.take(rows) | steps_bits(gains)

    def _gains_on(self, rows: Rows, worth: Ints, idle: Ints) -> Ints:
        yard, value = self._yard, self._yard.value
        gains = value.of_many(worth, idle, yard.cpu_free(rows) - self._cpu, yard.blocks(rows))
        gains -= yard.values.take(rows)
        gains += HALF
        gains >>= GRAIN_BITS
        return gains

    def _try_on(self, rows: Rows, fitting: Flags) -> tuple[Ints, int]:
        yard, worth_of = self._yard, self._yard.value.worth_column
        shares, worth, idle = yard.shares.take(rows, axis=0), yard.worth.take(rows), yard.idle.take(rows)
        if self._count:
            taken = np.zeros_like(fitting)
            order = np.where(fitting, shares, WHOLE + 1).argsort(axis=1, kind="stable")[:, : self._count]
            np.put_along_axis(taken, order, values=True, axis=1)
            after = np.where(taken, self._ask.left_on(rows), shares)
            worth += (worth_of.take(after) - worth_of.take(shares)).sum(axis=1)
            idle -= ((shares == WHOLE) & (after < WHOLE)).sum(axis=1)
        return self._gains_on(rows, worth, idle), -1

    def _try_one_on(self, rows: Rows, fitting: Flags) -> tuple[Ints, Ints]:
        yard, worth_of = self._yard, self._yard.value.worth_column
        shares, after = yard.shares.take(rows, axis=0), self._ask.left_on(rows)
        worth, idle = yard.worth.take(rows), yard.idle.take(rows)
        change = worth_of.take(after)
        change -= worth_of.take(shares)
        starts = np.arange(0, shares.size, shares.shape[1])
        whole = shares == WHOLE
        whole &= fitting
        fresh = whole.argmax(axis=1)
        there = whole.take(fresh + starts)
        fitting &= ~whole
        used = np.where(fitting, change, _NEVER).argmax(axis=1)
        gains: Ints = np.full(len(rows), _NEVER, dtype=np.int64)
        some = fitting.take(used + starts).nonzero()[0]
        if len(some):
            worth_after = worth.take(some) + change.take((used + starts).take(some))
            gains[some] = self._gains_on(rows.take(some), worth_after, idle.take(some))
        some = there.nonzero()[0]
        if len(some):
            places = (fresh + starts).take(some)
            worth_after = worth.take(some) + change.take(places)
            others = self._gains_on(rows.take(some), worth_after, idle.take(some) - (after.take(places) < WHOLE))
            better = others > gains.take(some)
            some = some[better]
            gains[some] = others[better]
            used[some] = fresh.take(some)
        return gains, used
