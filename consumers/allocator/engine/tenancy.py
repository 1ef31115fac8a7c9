"""Who may share a GPU with whom: what the grants on a GPU mean for the next pod.

* A grant that is *exclusive* is given on an idle GPU, and nothing joins it (``isolation: shared``, ``dedicated-gpu``,
  ``nvidia.com/gpucores: 100``).
* ``soft`` and ``hard`` do not mix, for the limiter in the process and the one in a worker know nothing of each other. A pod that
  states no isolation goes with either (TensorFusion's ``activeIsolationMode``).
* A partitioned GPU takes partitions only, and one that is not partitioned takes none while anything is on it.
* A GPU with slots takes as many containers (HAMi's ``deviceSplitCount``).

All of it is read from the grants in the ledger, so that every allocator sees the same. Per GPU the grants are counted in one
integer, the *tally*, which grants are added to and taken off; what it comes to are a few bits, the *marks*.
"""

from typing import Final

from schemas.cluster import Isolation
from schemas.decision import GpuGrant
from schemas.pod import GpuRequest

_FIELD: Final = 24
"""Bits of one count in a tally: slots, then pods by how they are isolated."""
_COUNT: Final = (1 << _FIELD) - 1
_ALONE: Final = 1 << 5 * _FIELD
_KINDS: Final[dict[Isolation, int]] = {
    "": 1 << _FIELD,
    "shared": 1 << _FIELD,
    "soft": 1 << 2 * _FIELD,
    "hard": 1 << 3 * _FIELD,
    "partitioned": 1 << 4 * _FIELD,
}

PLAIN: Final = 1
SOFT: Final = 2
HARD: Final = 4
PARTITIONED: Final = 8
ALONE: Final = 16
FULL: Final = 32

_FIELDS: Final = tuple((_COUNT << _FIELD * bit, 1 << bit) for bit in range(5))
"""Which bits of a tally, but for its slots, make which mark."""

HELD: Final = PLAIN | SOFT | HARD | PARTITIONED
CLOSED: Final = ALONE | FULL
"""Marks of GPUs that nobody can get."""

_CONFLICTS: Final[dict[Isolation, int]] = {
    "": PARTITIONED,
    "shared": 0,
    "soft": HARD | PARTITIONED,
    "hard": SOFT | PARTITIONED,
    "partitioned": PLAIN | SOFT | HARD,
}


def weight(grant: GpuGrant) -> int:
    """Return what a grant adds to the tally of its GPU."""
    return grant.slots + _KINDS[grant.isolation] + (_ALONE if grant.exclusive else 0)


def marks(tally: int, slots: int) -> int:
    """Return what a tally comes to on a GPU with so many slots, 0 for no limit."""
    if not tally:
        return 0
    full = FULL if 0 < slots <= tally & _COUNT else 0
    kinds = tally >> _FIELD
    if kinds <= _COUNT:  # nobody but plain pods, which is most of the time
        return PLAIN | full
    return full | sum(mark for field, mark in _FIELDS if kinds & field)


def wants_alone(request: GpuRequest) -> bool:
    """Return whether a request takes its GPUs for itself alone."""
    return request.count > 0 and (request.dedicated or request.isolation == "shared")


def conflicts(isolation: Isolation) -> int:
    """Return the marks of GPUs whose pods do not go with an isolation."""
    return _CONFLICTS[isolation]
