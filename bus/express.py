"""Messages to followers, straight from the socket.

nats-py carries every message through a coroutine, a parsed header, a queue and a task before anybody sees it: 25 us each, which
is most of what it costs to read a stream of a million. A follower wants none of that: it takes messages in stream order, must not
block, and looks at headers only of what was copied. So its deliveries are handed over where the bytes are taken apart.

Only that is done here. All that is said to the client itself, and messages to everybody else, goes nats-py's own way.
"""

import logging
from collections.abc import Callable
from typing import Final

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

log = logging.getLogger("gpubus.bus")

Sink = Callable[[bytes, bytes, bytes, bytes], bool]
"""Takes subject, reply subject, raw headers and payload; returns False for what is to go nats-py's own way."""

_CRLF: Final = b"\r\n"
_MSG_WITH_REPLY: Final = 5
_HMSG_WITH_REPLY: Final = 6


class Express(Parser):
    """The parser of one connection.

    Args:
        client: Whose; this takes the place of its own parser, before it connects.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._sinks: dict[int, Sink] = {}
        self._resets = 0
        self._needed = 0
        client._ps = self  # noqa: SLF001  nats-py has no option for it; without it followers are slower, and work

    def attach(self, subscription: Subscription, sink: Sink) -> None:
        """Hand what comes for a subscription to ``sink``; its callback gets what the sink does not want."""
        self._sinks[subscription._id] = sink  # noqa: SLF001

    def detach(self, subscription: Subscription) -> None:
        """Go nats-py's own way again."""
        self._sinks.pop(subscription._id, None)  # noqa: SLF001

    def reset(self) -> None:
        """Forget what was read: the connection is another one."""
        super().reset()
        self._resets = getattr(self, "_resets", 0) + 1
        self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take apart what has been read.

        Raises:
            ProtocolError: It is not what a NATS server says.
        """
        if self.state != AWAITING_CONTROL_LINE or not (self._sinks or self._needed):
            await super().parse(data)
            return
        if self.buf:
            self.buf += data
            if len(self.buf) < self._needed:
                return
            data = bytes(self.buf)
            self.buf = bytearray()
        self._needed = 0
        resets, at = self._resets, 0
        while at < len(data):
            after = await self._frame(data, at)
            if self._resets != resets:  # what is left came from a connection that is gone
                return
            if after == at:
                self.buf += data[at:]
                return
            at = after

    async def _frame(self, data: bytes, at: int) -> int:
        """Take one message or control line; return where the next begins, or ``at`` when it is not there whole."""
        end = data.find(_CRLF, at)
        if end < 0:
            self._needed = 1  # the line goes on
            return at
        words = data[at:end].split()
        headers = 0
        match words:
            case [b"MSG", _, sid, *_]:
                reply = words[3] if len(words) == _MSG_WITH_REPLY else b""
            case [b"HMSG", _, sid, *_]:
                reply, headers = words[3] if len(words) == _HMSG_WITH_REPLY else b"", int(words[-2])
            case _:
                await super().parse(data[at : end + 2])
                return end + 2
        start = end + 2
        stop = start + int(words[-1])
        if len(data) < stop + 2:
            self._needed = stop + 2 - at
            return at
        head, payload = data[start : start + headers], data[start + headers : stop]
        sink = self._sinks.get(int(sid))
        if sink is None or not self._taken(sink, words[1], reply, head, payload):
            await self.nc._process_msg(int(sid), words[1], reply, payload, head or None)  # noqa: SLF001  as Parser does
        return stop + 2

    def _taken(self, sink: Sink, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        try:
            taken = sink(subject, reply, headers, payload)
        except Exception:  # would stop nats-py for good
            log.exception("a message on %s could not be taken in", subject.decode(errors="replace"))
            return True
        if taken:
            self.nc.stats["in_msgs"] += 1
            self.nc.stats["in_bytes"] += len(payload)
        return taken
