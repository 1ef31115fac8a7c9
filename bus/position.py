"""Where in its stream a delivered JetStream message is, read from its reply subject."""

from typing import NamedTuple

_TOKENS_V1 = 9


class Position(NamedTuple):
    """Place of a delivery.

    Attributes:
        deliveries: How often the message has been delivered to this consumer, this one included.
        seq: Stream sequence.
        consumer_seq: Number of this delivery among the consumer's.
        time_ns: When the server stored the message, nanoseconds since the epoch.
        pending: Messages that wait behind it for this consumer.
    """

    deliveries: int
    seq: int
    consumer_seq: int
    time_ns: int
    pending: int


def position(reply: str) -> Position:
    """Parse ``$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>``.

    Servers with a domain put ``<domain>.<account>`` before the stream and a random token at the end.
    """
    tokens = reply.split(".")
    fields = tokens[4:9] if len(tokens) == _TOKENS_V1 else tokens[6:11]
    return Position(int(fields[0]), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[4]))
