"""Who is updated next. Pure: the same members give the same batch.

Source: upstream's batch arithmetic (component rolling update of its pool controller), which its users know from the
progress numbers in the pool's status. Where it divides by zero or takes more than a batch at once, this does not.
"""

from collections.abc import Callable, Container, Iterable
from typing import Final

import msgspec

from schemas.rollout import Member

FULL: Final = 100

MOST: Final = 1000
"""Members of a batch, whatever the percentage: a record names them all, and a NATS server takes a megabyte by default."""


class Batch(msgspec.Struct, frozen=True):
    """How many to update now.

    Attributes:
        size: Members; 0 when all are updated.
        progress: Percent that the batches before this one lead to.
        index: Number of this batch, from 0.
    """

    size: int
    progress: int
    index: int


def batch_size(total: int, percentage: int) -> int:
    """Return the most members that are updated at a time: ``percentage`` of all, rounded up."""
    return -(-percentage * total // FULL)


def most_down(total: int, percentage: int) -> int:
    """Return the most members that may be down by our doing at a time."""
    return min(batch_size(total, percentage), MOST)


def next_batch(total: int, updated: int, percentage: int, progress: int) -> Batch:
    """Return the next batch of a rollout that has come to ``progress`` percent.

    Batches whose members are updated already, by somebody else or because others left, are passed over.

    Raises:
        ValueError: ``percentage`` is not from 1 to 100.
    """
    if not 1 <= percentage <= FULL:
        raise ValueError(f"batchPercentage {percentage} is not from 1 to 100")
    most = batch_size(total, percentage)
    while True:
        index = progress // percentage
        missing = min((index + 1) * most, total) - updated
        if missing > 0 or updated >= total:
            # Members that came out of date in mid-rollout may leave more missing than a batch may take.
            return Batch(min(max(missing, 0), most), progress, index)
        progress = min(progress + percentage, FULL)


def plan_batch(
    members: Iterable[Member],
    is_updated: Callable[[Member], bool],
    percentage: int,
    progress: int,
    *,
    canary: bool = False,
    first: Container[str] = (),
    down: int = 0,
) -> tuple[tuple[Member, ...], Batch]:
    """Return the members to update now, and where that is in the rollout.

    Those that are down already come first, as replacing them takes nothing away; then the oldest, by creation and name. A
    canary is the oldest that is ready, for one that was down before would prove nothing.

    Args:
        members: All.
        is_updated: Whether nothing is to be done for a member.
        percentage: Members of a batch in percent of all.
        progress: Percent that the batches so far lead to.
        canary: Whether one goes alone.
        first: Names of those that are down by our doing: they go before all, as the canary too.
        down: How many are down by our doing. So many fewer others are taken.
    """
    members = tuple(members)
    outdated = [member for member in members if not is_updated(member)]
    batch = next_batch(len(members), len(members) - len(outdated), percentage, progress)
    outdated.sort(key=lambda member: (member.ready != canary, member.created_at, member.name))
    ours = [member for member in outdated if member.name in first]
    others = [member for member in outdated if member.name not in first]
    room = max(most_down(len(members), percentage) - down, 0)
    chosen = (ours + others[:room])[: min(batch.size, 1 if canary else MOST)]
    return tuple(chosen), msgspec.structs.replace(batch, size=len(chosen))
