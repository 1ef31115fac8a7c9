"""Sort keys of ``PackingValue``: score and every tie-break in one number, so that the best node is the largest.

From the top: at home, not under guard, step of the score, least free GPU (thousandths), least free CPU (tenths of a core),
first by name. What is beyond a field's range counts as the most it holds: 131 GPUs, 3,276 cores.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.ranking import HOME_BIT, LAST

Ints = NDArray[np.int64]

STEP: Final = 50
"""Thousandths of a GPU in one step of the score."""

_NAME_BITS: Final = 17
_CPU_BITS: Final = 15
_GPU_BITS: Final = 17
_STEP_BITS: Final = 12
_GPU_SHIFT: Final = _NAME_BITS + _CPU_BITS
_STEP_SHIFT: Final = _GPU_SHIFT + _GPU_BITS
_FREE_SHIFT: Final = _STEP_SHIFT + _STEP_BITS
_HOME_SHIFT: Final = _FREE_SHIFT + 1

_MOST_CPU: Final = (1 << _CPU_BITS) - 1
_MOST_GPU: Final = (1 << _GPU_BITS) - 1
_MOST_STEPS: Final = (1 << _STEP_BITS) - 1
_EVEN: Final = 1 << (_STEP_BITS - 1)
_CPU_GRAIN: Final = 100
_TAIL: Final = ~(_MOST_STEPS << _STEP_SHIFT)

NOT_GUARDED: Final = 1 << _FREE_SHIFT
"""Set in every key; taken out of those under guard while it holds."""


def place_bits(ties: NDArray[np.int32]) -> list[int]:
    """Return the bits for home and name, from the ties that the other modes use."""
    wide = ties.astype(np.int64)
    places: list[int] = (
        ((wide >> HOME_BIT) << _HOME_SHIFT) | NOT_GUARDED | np.maximum((wide & LAST) - LAST + (1 << _NAME_BITS) - 1, 0)
    ).tolist()
    return places


def tail_bits(place: int, free_milli: int, cpu_milli: int) -> int:
    """Return all bits of a key but the score's."""
    cpu = min(max(cpu_milli, 0) // _CPU_GRAIN, _MOST_CPU)
    return place | (_MOST_GPU - min(free_milli, _MOST_GPU)) << _GPU_SHIFT | (_MOST_CPU - cpu) << _NAME_BITS


def step_bits(score: int) -> int:
    """Return the bits of a score in thousandths of a GPU, rounded half up to steps."""
    return min(max((score + STEP // 2) // STEP + _EVEN, 0), _MOST_STEPS) << _STEP_SHIFT


def steps_bits(scores: Ints) -> Ints:
    """Return :meth:`step_bits` of many."""
    steps = (scores + STEP // 2) // STEP
    steps += _EVEN
    np.maximum(steps, 0, out=steps)
    np.minimum(steps, _MOST_STEPS, out=steps)
    return np.left_shift(steps, _STEP_SHIFT, out=steps)
