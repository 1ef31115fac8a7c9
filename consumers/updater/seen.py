"""What is known of one pool and component when its rollout is looked at. Pure."""

from datetime import datetime

import msgspec

from consumers.updater.progress import ACTIVE, stop_clock
from consumers.updater.verdict import Firing
from schemas.rollout import ComponentSpec, Member, Rollout


class Seen(msgspec.Struct, frozen=True):
    """What is known of one pool and component.

    Attributes:
        spec: What the pool wants; None when it is gone or cannot be read: then nothing is done.
        members: What runs.
        alerts: The pool's alerts that fire.
        gone: Whether the pool is gone, or configures this component no longer.
    """

    spec: ComponentSpec | None
    members: tuple[Member, ...] = ()
    alerts: tuple[Firing, ...] = ()
    gone: bool = False


def without_pool(record: Rollout, now: datetime) -> Rollout | None:
    """What is on its way waits for the pool, and is charged no time for it; should it come back, it goes on."""
    if record.phase not in ACTIVE or record.reason == "PoolGone":
        return None
    text = "the pool is gone, or configures this component no longer; it goes on when that is back"
    phase = record.phase if record.phase == "interval" else "planned"
    return msgspec.structs.replace(
        record, phase=phase, step="waited", txn="", changed_at=now, reason="PoolGone", message=text, by="",
        **stop_clock(record, now),
    )  # fmt: skip
