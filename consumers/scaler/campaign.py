"""A defragmentation campaign as a machine of states. Pure: what has been looked at goes in, the next record comes out.

One node at a time, only if every pod on it has a place elsewhere, within the time it may take, and over at the first surprise:
an eviction that is not allowed, a pod that does not go, or one that then finds no place.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from schemas.defrag import Campaign, CampaignEnd, Defrag
from schemas.dialects.text import seconds
from schemas.kube.pools import Defrag as Settings
from schemas.windows import check_cron, cron_matches

LEAVES_WITHIN: Final = timedelta(minutes=5)
"""How long pods may take to leave a node, and their successors to find a place."""

SETTLES_IN: Final = timedelta(minutes=1)
"""How long an empty node is looked at before the next: controllers make successors when they find the time."""

LATE: Final = timedelta(minutes=10)
"""How late a campaign may still begin."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's ``defrag``, understood.

    Attributes:
        closed_for: How long nodes stay closed that a campaign has emptied (``sourceNodeMarkerTTL``); None: until pods wait.
    """

    expression: str
    lasts: timedelta
    threshold: int
    closed_for: timedelta | None = timedelta(minutes=30)


def schedule_of(
    settings: Settings | None, field: str = "spec.nodeManagerConfig.nodeCompaction.defrag"
) -> Schedule | None:
    """Return when campaigns run; None where none are to.

    Raises:
        RequestError: The schedule, its time zone or its duration cannot be followed.
    """
    if settings is None or not settings.enabled:
        return None
    expression = check_cron(f"CRON_TZ={settings.timezone} {settings.schedule}", field=f"{field}.schedule")
    return Schedule(
        expression=expression,
        lasts=timedelta(seconds=seconds(settings.max_duration, field=f"{field}.maxDuration")),
        threshold=settings.utilization_threshold_percent,
        closed_for=None
        if settings.source_node_marker_ttl == "never"
        else timedelta(seconds=seconds(settings.source_node_marker_ttl, field=f"{field}.sourceNodeMarkerTTL")),
    )


def due(schedule: Schedule, before: Campaign | None, now: datetime) -> datetime | None:
    """Return the slot whose campaign is to begin now; None if none is due, or another one runs."""
    last = next(cron_matches(schedule.expression, now + timedelta(seconds=1), back=True), None)
    if last is None or now - last > LATE:
        return None
    slot = last.astimezone(UTC)
    return slot if before is None or (before.end and slot > before.slot) else None


def ended(campaign: Campaign, end: CampaignEnd, message: str, now: datetime) -> Campaign:
    """Return a campaign that is over; its nodes are to be opened again."""
    return msgspec.structs.replace(campaign, end=end, message=message, over_at=now)


def reopens(campaign: Campaign, schedule: Schedule | None, waiting: Collection[str], now: datetime) -> bool:
    """Return whether it is time to open the nodes of a campaign that is over.

    What was emptied as planned stays empty for a while, so that it can be given back; but not while pods wait, nor beyond the
    beginning of the next campaign.
    """
    if campaign.end != "Done" or schedule is None or campaign.over_at is None or waiting:
        return True
    late = schedule.closed_for is not None and now - campaign.over_at >= schedule.closed_for
    return late or due(schedule, campaign, now) is not None


def out_of_time(campaign: Campaign, schedule: Schedule | None, now: datetime) -> Campaign | None:
    """Return the campaign as ended if it may not go on."""
    if schedule is None:
        return ended(campaign, "Surprised", "the pool states no campaigns any more", now)
    if now - campaign.slot > schedule.lasts:
        return ended(campaign, "OutOfTime", f"it may take {schedule.lasts}", now)
    return None


def chosen(campaign: Campaign, plan: Defrag, now: datetime) -> Campaign:
    """Return the campaign at work on the next node of a plan, or at its end."""
    if not plan.emptied:
        return ended(campaign, "Done", f"{len(campaign.emptied)} nodes are empty, and no other can be emptied", now)
    node = plan.emptied[0]
    pods = {move.pod_uid: f"{move.namespace}/{move.name}" for move in plan.moves if move.source == node}
    return msgspec.structs.replace(campaign, node=node, since=now, evicting=pods)


def skipped(campaign: Campaign, reason: str) -> Campaign:
    """Return the campaign without the node that it had chosen and must leave alone."""
    return msgspec.structs.replace(
        campaign, node="", since=None, evicting={}, skipped={**campaign.skipped, campaign.node: reason}
    )


def emptying(
    campaign: Campaign, held: Mapping[str, str], waiting: Collection[str], blocked: str, now: datetime
) -> Campaign:
    """Return the campaign after a look at the node that is being emptied.

    Args:
        campaign: It.
        held: Pods that still hold something of the node, by UID, as ``namespace/name``.
        waiting: Pods that have begun to wait in the pool since the campaign began.
        blocked: Why an eviction was refused; empty if none was.
        now: The time.
    """
    assert campaign.since is not None  # noqa: S101  for mypy: a node comes with the time
    late = now - campaign.since > LEAVES_WITHIN
    if blocked:
        return ended(campaign, "Surprised", f"node {campaign.node}: {blocked}", now)
    if strangers := sorted(name for uid, name in held.items() if uid not in campaign.evicting):
        return ended(campaign, "Surprised", f"node {campaign.node} has a pod that it did not have: {strangers[0]}", now)
    if held and late:
        return ended(campaign, "Surprised", f"node {campaign.node}: {min(held.values())} has not left it", now)
    if waiting and late:
        return ended(
            campaign, "Surprised", f"{min(waiting)} finds no place since node {campaign.node} was emptied", now
        )
    if held or waiting or now - campaign.since < SETTLES_IN:
        return campaign
    return msgspec.structs.replace(
        campaign, node="", since=None, evicting={}, emptied=(*campaign.emptied, campaign.node)
    )
