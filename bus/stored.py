"""One stored message, asked from the leader of its stream."""

from typing import Any

import msgspec

from bus.connection import Bus
from bus.errors import NO_MESSAGE, ApiError
from bus.origin import nanoseconds


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as JetStream has stored it.

    Attributes:
        subject: NATS subject.
        seq: Stream sequence.
        time: When it was stored, RFC 3339 in UTC; empty from a server that does not say.
        data: The body; empty for a tombstone.
        hdrs: The headers as they are on the wire.
    """

    subject: str
    seq: int
    time: str = ""
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def time_ns(self) -> int:
        """When it was stored, in nanoseconds since the epoch."""
        return nanoseconds(self.time)


class _Got(msgspec.Struct):
    message: StoredMessage


_got = msgspec.json.Decoder(_Got)


async def get(bus: Bus, stream: str, **where: Any) -> StoredMessage:
    """Return a message: ``last_by_subj``, ``seq``, or ``next_by_subj`` with ``seq`` or ``start_time`` say which.

    Raises:
        ApiError: There is none (``NO_MESSAGE``), or JetStream refused to look.
        nats.errors.Error, TimeoutError, OSError: Nobody answered.
    """
    return _got.decode(await bus.api(f"STREAM.MSG.GET.{stream}", where)).message


async def find(bus: Bus, stream: str, **where: Any) -> StoredMessage | None:
    """Return a message as :func:`get` does, or None if there is none."""
    try:
        return await get(bus, stream, **where)
    except ApiError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
