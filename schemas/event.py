"""The envelope of every message: a CloudEvents 1.0 event in structured JSON mode.

``id`` is deterministic, so two replicas that report the same fact send the same id and the bus keeps one. It is also the
``Nats-Msg-Id`` of the publish. Readers ignore fields they do not know; a missing or mistyped field is an error.
Source: CloudEvents 1.0.2 core specification and its JSON event format.
"""

from datetime import UTC, datetime
from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

SPEC_VERSION: Final = "1.0"
JSON: Final = "application/json"

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]


class Event(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """One fact or command.

    Attributes:
        id: Deterministic identity; unique together with ``source``.
        source: URI-reference of the part that speaks, such as ``/gpubus/allocator/a-1``.
        type: Versioned name of the payload, such as ``gpubus.pod.v1``; see :mod:`schemas.registry`.
        subject: The object the event is about, such as ``namespace/name``. Not the NATS subject.
        time: When the fact was observed, RFC 3339 with a time zone.
        data: The payload.
        causationid: ``id`` of the event that led to this one (extension attribute).
        traceparent: W3C trace context (extension attribute of the distributed tracing extension).
    """

    id: str
    source: str
    type: str
    subject: str
    time: Timestamp
    data: T
    specversion: Literal["1.0"] = SPEC_VERSION
    datacontenttype: Literal["application/json"] = JSON
    causationid: str | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


def utc(seconds: float) -> datetime:
    """Return the instant ``seconds`` after the Unix epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
