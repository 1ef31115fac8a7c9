"""What is written down of a look at a pool, before anything is done. Pure."""

from typing import Final

import msgspec

from consumers.scaler.claims import Found
from consumers.scaler.placeholders import Present, Wanted
from consumers.scaler.sizes import CapacityPlan, PoolView
from schemas.capacity import PoolCapacity, Size

MOST_TEXT: Final = 2000


def with_reserve(record: PoolCapacity, kept: Wanted, present: tuple[Present, ...]) -> PoolCapacity:
    """Return a record that also tells of placeholders: as long as any are there, they are looked for."""
    message = "; ".join(filter(None, [record.message, kept.refusal]))[:MOST_TEXT]
    return msgspec.structs.replace(record, message=message, placeholders=max(kept.number, len(present)))


def noted(
    view: PoolView, plan: CapacityPlan, before: PoolCapacity, found: Found, came: tuple[str, ...]
) -> PoolCapacity:
    """Return what is to be written down of a look.

    Args:
        view: What the plan was made from.
        plan: What is to be done.
        before: What was written down at the last look.
        found: The pool's claims.
        came: Those of them whose node has come, at any time.
    """
    there = {claim.name for claim in found.claims}
    bare = {claim.name: claim.bare_since for claim in view.claims if claim.bare_since is not None}
    given_up = ({*before.given_up, *(claim.name for claim in plan.give_up)} & there) - (set(came) - bare.keys())
    coming = Size()
    for claim in view.claims:
        coming = coming.plus(claim.offer.size)
    total = available = Size()
    for machine in view.machines:
        total, available = total.plus(machine.size), available.plus(machine.free)
    closed = {machine.name for machine in view.machines if machine.leaving} | {one.name for one in plan.close}
    reopened = {one.name for one in plan.reopen}
    # One that is opened again is idle from when that is heard of: pods need time to come to it.
    idle = [machine for machine in view.machines if machine.idle_since is not None and machine.name not in reopened]
    return PoolCapacity(
        pool=before.pool,
        total=total,
        available=available,
        coming=coming,
        missing=view.missing,
        held=plan.held,
        message="; ".join(filter(None, [plan.message, *found.refused]))[:MOST_TEXT],
        claims={claim.name: claim.made_at for claim in sorted(found.claims, key=lambda one: one.name)},
        came=came,
        closed=tuple(sorted(closed - reopened)),
        given_up=tuple(sorted(given_up)),
        failures=plan.failures,
        idle_since={machine.name: machine.idle_since for machine in idle if machine.idle_since is not None},
        bare_since=dict(sorted(bare.items())),
        ended=view.ended,
    )
