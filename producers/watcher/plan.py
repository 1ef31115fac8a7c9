"""What has to be said about one object, given what STATE says and what the API server says. Pure.

The commands come before the state that makes them superfluous: whoever finds the new state in STATE knows that somebody
has given them. A crash in between repeats them; they carry the ids that they had the first time.
"""

import hashlib
from datetime import datetime
from typing import Any, Final

import msgspec

from bus import subjects
from bus.codec import encode
from producers.watcher.digests import BYTES, digest, pod_digest
from producers.watcher.reading import Refusal
from schemas.decision import Basis, Decision
from schemas.event import Event
from schemas.kube.core import ENDED
from schemas.pod import Pod, Release
from schemas.reasons import CODES
from schemas.registry import TYPE_NAMES

SOURCE: Final = "/gpubus/watcher"

POD: Final = "pod"
NODE: Final = "node"
POOL: Final = "pool"
QUOTA: Final = "quota"
CONFIG: Final = "config"
COMPONENT: Final = "component"
MEMBER: Final = "member"
DISRUPTION: Final = "disruption"
NAMESPACE: Final = "namespace"
CLIENT: Final = "client"
CONNECTION: Final = "connection"

KINDS: Final = {
    POD: 2, NODE: 1, POOL: 1, QUOTA: 2, CONFIG: 3, COMPONENT: 2, MEMBER: 3, DISRUPTION: 2, NAMESPACE: 1, CLIENT: 2,
    CONNECTION: 2,
}  # fmt: skip
"""What is told, and how many names each has: a custom resource those of its kind, namespace and itself."""

Outgoing = tuple[str, bytes, str]
"""Subject, payload and message id of one publish."""

Key = tuple[str, ...]
"""Names of an object, as in its STATE subject behind the kind."""


class About(msgspec.Struct, frozen=True, gc=False):
    """Which object, and when.

    Attributes:
        subject: Where STATE has it.
        key: Its names.
        uid: What its events are identified by.
        version: Since when it is so.
        at: Time of the event.
    """

    subject: str
    key: Key
    uid: str
    version: int
    at: datetime


class Stored(msgspec.Struct, frozen=True, gc=False):
    """What STATE holds on one subject: its sequence, the API version it is of, and its content as a digest.

    Attributes:
        pod: Enough of a pod to give commands about it; None for other objects.
    """

    seq: int
    version: int
    digest: bytes
    pod: "Known | None" = None


class Known(msgspec.Struct, frozen=True, gc=False):
    """A pod as STATE knows it; ``asks`` is a digest of its request."""

    uid: str
    pool: str
    node: str
    ended: bool
    asks: bytes


def known(pod: Pod, asks: bytes) -> Known:
    """Return what commands need to know of a pod; ``asks`` is the digest of its request."""
    return Known(pod.uid, pod.request.pool, pod.node, pod.phase in ENDED, asks)


def stored_of(seq: int, event: Event[Any]) -> Stored:
    """Return what STATE holds where it has ``event`` at ``seq``."""
    version, value = version_of(event.id), event.data
    if not isinstance(value, Pod):
        return Stored(seq, version, digest(value))
    asks = digest(value.request)
    return Stored(seq, version, pod_digest(value, asks), known(value, asks))


def fact(about: About, value: msgspec.Struct) -> bytes:
    """Return the event that states an object as of its version."""
    event = Event(
        id=f"{about.uid}:{about.version}",
        source=SOURCE,
        type=TYPE_NAMES[type(value)],
        subject="/".join(about.key),
        time=about.at,
        data=value,
    )
    return encode(event)


def version_of(event_id: str) -> int:
    """Return the version that an event of :func:`fact` is of; 0 for an event of somebody else."""
    version = event_id.rpartition(":")[2]
    return int(version) if version.isascii() and version.isdigit() else 0


def commands(about: About, stored: Stored | None, after: Pod | None, now: Known | None) -> list[Outgoing]:
    """Return what has to be done because a pod is ``after``, known as ``now``; None is no pod of ours.

    Ids name the STATE record that is departed from, so that replicas which do the same step say the same. A pod that has
    ended is released even if STATE never knew it alive: whoever had it scheduled may have died before saying so.
    """
    before = stored.pod if stored is not None else None
    if now is not None and before == now:
        return []  # the common case: nothing that matters here has changed
    key, at = about.key, about.at
    step = f"{stored.seq if stored is not None else 0}:{about.version}"
    same = before is not None and now is not None and before.uid == now.uid
    found: list[Outgoing] = []
    if before is not None and not before.ended and (not same or (now is not None and now.ended)):
        found.append(release(key, before, after.phase if after is not None and same else "Deleted", step, at))
    if after is not None and now is not None and now.ended and not same:
        found.append(release(key, now, after.phase, step, at))
    if after is not None and now is not None and not now.ended and not now.node:
        asked = before is not None and same and before.asks == now.asks
        if not asked:
            found.append(_schedule(after, now, step, at))
    return found


def refusal(key: Key, uid: str, refused: Refusal, at: datetime, state_seq: int) -> Outgoing:
    """Return the decision that a pod cannot be placed as it is written."""
    name = hashlib.blake2b(f"{refused.reason}:{refused.message}".encode(), digest_size=BYTES).hexdigest()
    decision = Decision(
        outcome="unschedulable",
        namespace=key[0],
        name=key[1],
        pod_uid=uid,
        pool="",
        allocator="watcher",
        basis=Basis(state=state_seq, ledger=0, ordinal=0),
        reason=refused.reason,
        message=refused.message,
        help=CODES[refused.reason].help,
    )
    event = Event(
        id=f"{uid}:refused:{name}",
        source=SOURCE,
        type="gpubus.decision.v1",
        subject="/".join(key),
        time=at,
        data=decision,
    )
    return subjects.decision(*key), encode(event), event.id


def _schedule(pod: Pod, now: Known, step: str, at: datetime) -> Outgoing:
    event = Event(
        id=f"{pod.uid}:schedule:{step}:{now.asks.hex()}",
        source=SOURCE,
        type="gpubus.schedule.v1",
        subject=f"{pod.namespace}/{pod.name}",
        time=at,
        data=pod.command(),
        causationid=f"{pod.uid}:{pod.resource_version}",
    )
    return subjects.work("schedule", pod.request.pool), encode(event), event.id


def release(key: Key, before: Known, reason: str, step: str, at: datetime) -> Outgoing:
    """Return the command to give back what a pod holds; ``step`` tells apart the occasions on which it is said."""
    event = Event(
        id=f"{before.uid}:release:{step}",
        source=SOURCE,
        type="gpubus.release.v1",
        subject="/".join(key),
        time=at,
        data=Release(namespace=key[0], name=key[1], uid=before.uid, pool=before.pool, node=before.node, reason=reason),
    )
    return subjects.work("release", before.node), encode(event), event.id
