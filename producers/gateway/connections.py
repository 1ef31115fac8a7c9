"""Where a client's worker is: told to the pod whose connection it is, and to nobody else.

``GET /api/connection?name=NAME&namespace=NAMESPACE`` with the token of the pod's service account. The API server says which pod a
token was issued to; only that one, by its UID, gets the URL of its connection, as soon as there is one. Source of path and
parameters: the contract's client.
"""

import asyncio
import logging
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.streams import STATE
from producers.gateway.access import DeniedError, bearer
from producers.gateway.callers import Callers, PodIdentity
from schemas.remote import Connection

log = logging.getLogger("gpubus.gateway")

PATH: Final = "/api/connection"
PATIENCE_S: Final = 60.0
"""How long an answer waits for a worker; the client asks again."""

AT_ONCE: Final = 4096
"""Clients that may wait: each costs a few kilobytes."""


class Connections:
    """All connections of the cluster as STATE has them, and who waits for one.

    Args:
        bus: The connection to the bus.
        callers: Says which pod asks.
        patience_s: How long an answer waits for a worker.
    """

    def __init__(self, bus: Bus, callers: Callers, *, patience_s: float = PATIENCE_S) -> None:
        self._callers = callers
        self._patience_s = patience_s
        self._known: dict[tuple[str, str], Connection] = {}
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._room = AT_ONCE
        self._stopped = False
        self._state = Follower(bus, STATE, [f"{subjects.subject('state', 'connection')}.*.*"], self._on_state)

    async def start(self) -> None:
        """Begin to follow."""
        await self._state.start()

    async def stop(self) -> None:
        """Let nobody wait any longer, and stop following."""
        self.hurry()
        await self._state.stop()

    def hurry(self) -> None:
        """Answer all who wait."""
        self._stopped = True
        for key in self._waiting:
            self._wake(key)

    def _on_state(self, record: Record) -> None:
        try:
            _, _, namespace, name = subjects.names(record.subject)
            found = None if record.deleted else codec.decode_as(Connection, record.payload).data
        except (UndecodableError, ValueError) as error:
            log.warning("STATE %d on %s: %s", record.seq, record.subject, error)
            return
        if found is None:
            self._known.pop((namespace, name), None)
        else:
            self._known[namespace, name] = found
        self._wake((namespace, name))

    def _wake(self, key: tuple[str, str]) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        if self._room == 0:
            return _refusal(503, "too many clients wait: try again")
        self._room -= 1
        try:
            pod = await self._callers.identify(bearer(request.headers.get("authorization", "")))
            namespace, name = (request.query_params.get(key, "") for key in ("namespace", "name"))
            if not namespace or not name:
                return _refusal(400, "name and namespace are the parameters of a connection: give both")
            return await self._tell(pod, (namespace, name))
        except DeniedError as error:
            return _refusal(error.code, str(error))
        finally:
            self._room += 1

    async def _tell(self, pod: PodIdentity, key: tuple[str, str]) -> Response:
        """Wait for the URL of a connection of this pod. One that is not known yet may be on its way."""
        changed = asyncio.Event()
        self._waiting.setdefault(key, set()).add(changed)
        try:
            async with asyncio.timeout(self._patience_s):
                while (said := self._said(pod, key)) is None:
                    changed.clear()
                    await changed.wait()
                return said
        except TimeoutError:
            if key in self._known:
                return _refusal(504, f"connection {'/'.join(key)} has no worker yet: see its workload's status")
            text = "is not known: does the role workload run, and is the workload the pod's? See its condition ClientsServed"
            return _refusal(404, f"connection {'/'.join(key)} {text}")
        finally:
            self._waiting[key].discard(changed)
            if not self._waiting[key]:
                del self._waiting[key]

    def _said(self, pod: PodIdentity, key: tuple[str, str]) -> Response | None:
        """Return what can be said at once; None if it has to be waited for."""
        found = self._known.get(key)
        # A pod that had the name before may have left a connection: this one's will take its place.
        named = found is None or found.client == pod.name
        if pod.namespace != key[0] or not named:
            return _refusal(403, f"connection {'/'.join(key)} is not of pod {pod.namespace}/{pod.name}")
        if found is not None and found.client_uid == pod.uid and found.url:
            return PlainTextResponse(found.url)
        return _refusal(503, "the gateway stops: try again") if self._stopped else None


def _refusal(code: int, text: str) -> Response:
    headers = {"Retry-After": "1"} if code in (503, 504) else None
    if code == 401:  # noqa: PLR2004
        headers = {"WWW-Authenticate": "Bearer"}
    return Response(msgspec.json.encode({"error": text}), code, headers, media_type="application/json")
