"""What becomes of an alert whose row is gone as its node says nothing: held for a while, since nobody knows of its end. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from consumers.alerter.template import Scalar
from schemas.alert import Streak

HELD: Final = timedelta(minutes=15)
"""How long an alert outlives the words of its node, or two evaluations where those are longer."""

NOTE: Final = "note"
"""Annotation that says why an alert is kept, or ended, without a row."""

MOST_NODES: Final = 16
"""Nodes of one streak that are known; an alert over more of them is about a pool."""


def with_node(streak: Streak, row: Mapping[str, Scalar]) -> Streak:
    """Return a streak that knows the node of one of its rows."""
    node = row.get("node")
    if not isinstance(node, str) or not node or node in streak.nodes or len(streak.nodes) == MOST_NODES:
        return streak
    return msgspec.structs.replace(streak, nodes=(*streak.nodes, node))


def without_row(
    streak: Streak, at: datetime, interval: timedelta, silent: Collection[str], gone: Collection[str]
) -> tuple[Streak | None, str]:
    """Return a streak without a row as it is held, or None where it is over, then with what is to be said of that.

    Args:
        streak: The streak.
        at: Time of the evaluation.
        interval: Between two of them.
        silent: Nodes that said nothing in the window.
        gone: Nodes that are no more.
    """
    quiet = [node for node in streak.nodes if node in silent]
    if not quiet:
        left = [node for node in streak.nodes if node in gone]
        return None, f"over because node {', '.join(left)} is gone" if left else ""
    since = streak.silent_since or at
    if at - since >= max(HELD, 2 * interval):
        return None, f"given up: nothing was heard of node {', '.join(quiet)} since {since:%Y-%m-%d %H:%M:%S} UTC"
    return msgspec.structs.replace(streak, silent_since=since), ""


def silence(streak: Streak) -> str:
    """Return why a streak is held without a row; empty where it is not."""
    if streak.silent_since is None:
        return ""
    since = f"{streak.silent_since:%Y-%m-%d %H:%M:%S} UTC"
    return f"not known to be over: the agent of node {', '.join(streak.nodes)} has been silent since {since} or longer"


def noted(streak: Streak, note: str) -> dict[str, str]:
    """Return the annotations of an alert with a note, if there is one."""
    return {**streak.annotations, NOTE: note} if note else streak.annotations
