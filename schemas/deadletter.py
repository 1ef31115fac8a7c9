"""What could not be handled: the original message, kept whole, with the reason."""

import msgspec

from schemas.cluster import Amount
from schemas.event import Timestamp


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message taken out of its consumer's way.

    Attributes:
        stream: Stream the message was in.
        subject: NATS subject it was published on; ``retry`` publishes it there again.
        sequence: Its stream sequence.
        consumer: The consumer that gave it up.
        deliveries: How often it had been delivered.
        reason: What went wrong, for people.
        headers: Its NATS headers.
        payload: Its body, byte for byte (base64 in JSON).
        published_at: When it entered the stream.
    """

    stream: str
    subject: str
    sequence: Amount
    consumer: str
    deliveries: Amount
    reason: str
    payload: bytes
    published_at: Timestamp
    headers: dict[str, str] = {}
