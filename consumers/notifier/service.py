"""The notifier: brings notices to every Alertmanager, one after the other, until at least one has taken each.

One notice is on its way at a time over the whole group: an alert must not be told to fire after it was told to be over.
While no Alertmanager answers, notices wait on the bus. Those that went to one of several and not to the others need no
retry: what fires is told again with the next evaluation, and what is over ends by its time.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from bus.codec import decode_as
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.streams import ALERT
from bus.worker import Dead, Done, Outcome, Retry, Worker
from consumers.notifier.payload import payload
from schemas.alert import AlertNotice

log = logging.getLogger("gpubus.notifier")

NOTICES: Final = ConsumerSpec(
    stream=ALERT,
    durable="notifier",
    filters=("gpubus.alert.>",),
    ack_wait_s=30.0,
    max_deliver=1_000_000_000,  # an Alertmanager that is away for a week loses nothing
    max_ack_pending=1,
)
TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
_REFUSED: Final = 400


class NotifierStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, in notices; ``errors`` counts requests to single Alertmanagers that failed."""

    accepted: int
    refused: int
    waiting: int
    errors: int


class Notifier:
    """One notifier process.

    Args:
        bus: The connection; the streams must exist.
        name: Unique name of this process.
        addresses: Base URLs of all Alertmanagers of one cluster.

    Raises:
        ValueError: There is none, or one is no HTTP URL.
    """

    def __init__(self, bus: Bus, name: str, addresses: Sequence[str]) -> None:
        self._bus = bus
        self.name = name
        self._addresses = [checked(address) for address in addresses]
        if not self._addresses:
            raise ValueError("no Alertmanager: write its address, such as http://alert-manager:9093")
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S)
        self._accepted = self._refused = self._waiting = self._errors = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Bring notices until ``stop`` is set."""
        if ready is not None:
            ready.set()
        try:
            await Worker(PullConsumer(self._bus, NOTICES, prefetch=1), self.handle, concurrency=1).run(stop)
        finally:
            await self._client.aclose()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Bring one notice."""
        alerts = payload(decode_as(AlertNotice, delivery.payload).data)
        if not alerts:
            return Done()
        body = msgspec.json.encode(alerts)
        answers = await asyncio.gather(*(self._post(address, body) for address in self._addresses))
        if any(not answer for answer in answers):
            self._accepted += 1
            return Done()
        if all(answer.startswith("refused") for answer in answers):
            self._refused += 1
            return Dead(answers[0])
        self._waiting += 1
        log.warning("no Alertmanager took the notice: %s; trying again", answers[0])
        return Retry(RETRY_S)

    async def _post(self, address: str, body: bytes) -> str:
        """Send to one Alertmanager and return what went wrong."""
        try:
            response = await self._client.post(
                f"{address}/api/v2/alerts", content=body, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            problem = f"{address}: {str(error) or type(error).__name__}"
        else:
            if response.is_success:
                return ""
            word = "refused" if response.status_code == _REFUSED else "failed"
            problem = f"{word} by {address}: {response.status_code} {response.text[:200]}"
        self._errors += 1
        return problem

    def statistics(self) -> NotifierStatistics:
        """Return the counters of this process."""
        return NotifierStatistics(
            accepted=self._accepted, refused=self._refused, waiting=self._waiting, errors=self._errors
        )


def checked(address: str) -> str:
    """Return an address without a slash at its end.

    Raises:
        ValueError: It is no HTTP URL.
    """
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            f"Alertmanager address {address!r} needs http:// or https:// and a host: such as http://alert-manager:9093"
        )
    return address.rstrip("/")
