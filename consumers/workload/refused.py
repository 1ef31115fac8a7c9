"""Pods that call for a workload and get no worker, and what their users should do about it. Pure."""

from collections.abc import Collection
from typing import Final, NamedTuple

SHOWN: Final = 3
"""Pods that a message names."""

UNKNOWN: Final = "MakerUnknown"
GONE: Final = "MakerGone"
TAKEN: Final = "NameTaken"

_ADVICE: Final = {
    UNKNOWN: "nobody can say who has made the pods {pods}, which call for it and get no worker until somebody does: {text}",
    GONE: (
        "what has made the pods {pods} is not there, so that they are not known to be of this workload and get no worker: delete "
        "them, and create again what makes them"
    ),
    TAKEN: (
        "it is not the workload of the pods {pods}, which call for one of this name and get no worker: rename what makes "
        "them, or this"
    ),
}
"""What is said of each reason."""


class Refused(NamedTuple):
    """A pod that gets no worker.

    Attributes:
        name: The pod's.
        uid: The pod's.
        reason: Why: nobody can say who has made it, the API server has no such maker, or the workload is another's.
        text: What is in the way of knowing more; empty unless ``reason`` is that nobody can say.
    """

    name: str
    uid: str
    reason: str
    text: str = ""


def refusal(refused: Collection[Refused]) -> tuple[str, str]:
    """Return the reason that counts most, and what is to be known of all; both empty if there are none."""
    reasons = [reason for reason in _ADVICE if any(one.reason == reason for one in refused)]
    said = "; ".join(_said(reason, refused) for reason in reasons)
    return (reasons[0] if reasons else ""), said


def _said(reason: str, refused: Collection[Refused]) -> str:
    of = sorted(one for one in refused if one.reason == reason)
    more = f" and {len(of) - SHOWN} more" if len(of) > SHOWN else ""
    return _ADVICE[reason].format(pods=", ".join(one.name for one in of[:SHOWN]) + more, text=of[0].text)
