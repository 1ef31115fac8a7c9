"""Events to bytes and back. One place decides what a valid message is."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from bus.errors import UndecodableError
from schemas.event import Event
from schemas.registry import EVENT_TYPES

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_envelope = msgspec.json.Decoder(Event[msgspec.Raw])


@cache
def _payload_decoder(type_name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(EVENT_TYPES[type_name])


@cache
def _event_decoder(struct: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Event[struct])  # type: ignore[valid-type]


def encode(value: object) -> bytes:
    """Encode an event, or any Struct, as JSON."""
    return _encoder.encode(value)


def decode(payload: bytes) -> Event[Any]:
    """Decode an event of any registered type.

    Raises:
        UndecodableError: Not JSON, not an event, an unknown type, or a payload that does not fit its type. The reason
            names the path and what was expected there.
    """
    try:
        envelope = _envelope.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableError(f"not a CloudEvent: {error}") from None
    if envelope.type not in EVENT_TYPES:
        raise UndecodableError(f"unknown event type {envelope.type!r}: known are {', '.join(EVENT_TYPES)}")
    try:
        data = _payload_decoder(envelope.type).decode(envelope.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableError(f"bad {envelope.type} payload: {error}") from None
    return msgspec.structs.replace(envelope, data=data)


def check_name(said: str, meant: str) -> None:
    """Check that a payload is about the object that its subject names: otherwise one of the two is a mistake.

    Raises:
        UndecodableError: It is about another one.
    """
    if said != meant:
        raise UndecodableError(f"payload is about {said!r}, its subject about {meant!r}: publish it on its own subject")


def decode_as(struct: type[T], payload: bytes) -> Event[T]:
    """Decode an event whose payload type the subject already tells; about half the cost of :func:`decode`.

    Raises:
        UndecodableError: Not such an event.
    """
    try:
        event: Event[T] = _event_decoder(struct).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableError(f"not a {struct.__name__} event: {error}") from None
    return event
