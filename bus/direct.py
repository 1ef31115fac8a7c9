"""Messages handled where they are read, and answered without waiting: for requests and replies that take microseconds.

The client library hands messages over through a queue and a task of each subscription. For a short request that costs as much
as the request itself, twice on its way. It offers another way for its own replies: a future instead of a callback.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

log = logging.getLogger("gpubus.bus")


async def subscribe(client: Client, subject: str, handle: Callable[[Msg], None], *, queue: str = "") -> Subscription:
    """Call ``handle`` with every message of a subject, in order, in the loop's turn in which it was read.

    It must be short, for nothing else of the connection is read meanwhile. An exception is logged: it would end the reading.
    """
    return await client.subscribe(subject, queue=queue, future=_Every(handle))  # type: ignore[arg-type]


class _Every:
    """What the client takes for a future of one reply; it does not mind being given the next."""

    def __init__(self, handle: Callable[[Msg], None]) -> None:
        self._handle = handle

    def cancelled(self) -> bool:
        return False

    def set_result(self, message: Msg) -> None:
        try:
            self._handle(message)
        except Exception:
            log.exception("%s: a message could not be handled", message.subject)


def publish(
    client: Client, subject: str, payload: bytes, headers: dict[str, str] | None = None, *, reply: str = ""
) -> None:
    """Publish from where nothing can be waited for. The client only notes what its writer is to send next.

    Raises:
        nats.errors.Error: There is no connection, or the message is too large for it.
    """
    noting: Coroutine[Any, Any, None] = client.publish(subject, payload, reply=reply, headers=headers)
    try:
        noting.send(None)
    except StopIteration:
        return
    noting.close()
    raise nats.errors.Error("the client would have to wait")
