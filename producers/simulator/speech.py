"""What the simulated cluster says: facts about pods, and the commands that follow from them.

Every message id is derived from the object and what happened to it, so saying the same thing twice leaves one copy.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from bus import subjects
from bus.codec import encode
from schemas.event import Event
from schemas.pod import Pod, Release

SOURCE: Final = "/gpubus/simulator"

Outgoing = tuple[str, bytes, str]
"""Subject, payload and message id of one publish."""

_CREATED: Final = "1"
_BOUND: Final = "2"
"""Resource versions: a simulated pod changes once, when it gets its node."""


def pending(pod: Pod, at: datetime) -> Outgoing:
    """Return the fact that ``pod`` was created."""
    return _pod(pod, _CREATED, at, msgspec.UNSET)


def running(pod: Pod, node: str, *, cause: str, at: datetime) -> Outgoing:
    """Return the fact that ``pod`` runs on ``node``, because of the decision whose id is ``cause``."""
    bound = Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        resource_version=_BOUND,
        request=pod.request,
        phase="Running",
        node=node,
        labels=pod.labels,
        created_at=pod.created_at,
    )
    return _pod(bound, _BOUND, at, cause)


def gone(pod: Pod) -> tuple[str, str]:
    """Return the subject to erase now that ``pod`` is deleted, and the message id of doing so."""
    return subjects.state("pod", pod.namespace, pod.name), f"{pod.uid}:gone"


def schedule(pod: Pod, at: datetime) -> Outgoing:
    """Return the command to find a place for ``pod``."""
    event = Event(
        id=f"{pod.uid}:{pod.resource_version}:schedule",
        source=SOURCE,
        type="gpubus.schedule.v1",
        subject=f"{pod.namespace}/{pod.name}",
        time=at,
        data=pod.command(),
        causationid=f"{pod.uid}:{pod.resource_version}",
    )
    return subjects.work("schedule", pod.request.pool), encode(event), event.id


def release(
    pod: Pod,
    node: str,
    reason: Literal["Succeeded", "Deleted"],
    *,
    cause: str,
    at: datetime,
    again: bool = False,
) -> Outgoing:
    """Return the command to give back what ``pod`` holds on ``node``.

    Args:
        pod: The pod, which has ended.
        node: Where it was placed.
        reason: How it ended.
        cause: Id of the decision that had given it its place.
        at: Time stamp.
        again: The pod was released before and was then given a place once more. That is another fact; under the id of
            the first release the server would take it for a copy and drop it.
    """
    event = Event(
        id=f"{pod.uid}:release:{cause}" if again else f"{pod.uid}:release",
        source=SOURCE,
        type="gpubus.release.v1",
        subject=f"{pod.namespace}/{pod.name}",
        time=at,
        data=Release(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            pool=pod.request.pool,
            node=node,
            reason=reason,
        ),
        causationid=cause,
    )
    return subjects.work("release", node), encode(event), event.id


def _pod(pod: Pod, revision: str, at: datetime, cause: str | msgspec.UnsetType) -> Outgoing:
    event = Event(
        id=f"{pod.uid}:{revision}",
        source=SOURCE,
        type="gpubus.pod.v1",
        subject=f"{pod.namespace}/{pod.name}",
        time=at,
        data=pod,
        causationid=cause,
    )
    return subjects.state("pod", pod.namespace, pod.name), encode(event), event.id
