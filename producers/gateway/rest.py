"""The REST interface: questions over HTTP, which inspectors answer. TensorFusion's paths and shapes.

Nobody is asked who they are, so it is served to the machine itself only. A page in a browser there cannot use it either: it
would have to name another host (DNS rebinding), or send a media type that browsers ask about first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bus.errors import CallError, CallTimeoutError, NoResponderError
from producers.gateway.manifest import JSON_TYPES, YAML_TYPES, read_pod
from schemas.dialects import RequestError
from schemas.inspection import Answer, Dump, Problem, Simulate

log = logging.getLogger("gpubus.gateway")

LARGEST_POD: Final = 256 << 10
"""Bytes of a pod: what the API server allows for its annotations alone; what is larger would not fit on the bus with quotes."""

AT_ONCE: Final = 8
"""Questions in flight: each takes time of the process that admissions wait for."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class Inspectors(Protocol):
    """Whoever answers questions."""

    async def ask(self, query: Simulate | Dump) -> Answer:
        """Ask.

        Raises:
            CallError: Nobody could say.
        """


class _RefusedError(Exception):
    def __init__(self, code: int, field: str, value: str, problem: str, fix: str) -> None:
        super().__init__(str(RequestError(field, value, problem, fix)))
        self.answer = _problem(code, str(self), field=field, value=value[:253], fix=fix)


class Rest:
    """The ASGI application.

    Args:
        inspectors: Whom to ask.
    """

    def __init__(self, inspectors: Inspectors) -> None:
        self._inspectors = inspectors
        self._room = AT_ONCE
        self.app = Starlette(
            routes=[
                Route("/api/simulate-schedule", self._guarded(self._simulate), methods=["POST"]),
                Route("/api/allocation", self._guarded(self._allocation), methods=["GET"]),
            ],
            exception_handlers={HTTPException: _unknown},
        )

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if self._room == 0:
                return _problem(503, "too many questions at once: try again")
            self._room -= 1
            try:
                _check_host(request.headers.get("host", ""))
                return await answer(request)
            except _RefusedError as error:
                return error.answer
            except ClientDisconnect:
                return Response(status_code=400)
            finally:
                self._room += 1

        return guarded

    async def _simulate(self, request: Request) -> Response:
        written = request.headers.get("content-type", "")
        media_type = written.partition(";")[0].strip().lower()
        if media_type not in (*JSON_TYPES, *YAML_TYPES):
            fix = "send application/yaml or application/json; with curl use --data-binary too"
            raise _RefusedError(415, "Content-Type", written, "is neither YAML nor JSON", fix)
        body = await _body(request)
        try:
            query = await asyncio.to_thread(read_pod, body, media_type)
        except RequestError as error:
            return _problem(400, str(error), field=error.field, value=error.value[:253], fix=error.fix)
        if len(bytes(query.pod)) > 2 * LARGEST_POD:
            raise _too_large()
        return await self._ask(query)

    async def _allocation(self, _: Request) -> Response:
        return await self._ask(Dump())

    async def _ask(self, query: Simulate | Dump) -> Response:
        try:
            answer = await self._inspectors.ask(query)
        except NoResponderError:
            return _problem(503, "no inspector answers: is the role inspector running?")
        except CallTimeoutError as error:
            return _problem(504, f"{error}: try again")
        except CallError as error:
            log.warning("a question was not answered: %s", error)
            return _problem(502, str(error))
        return Response(bytes(answer.body), answer.code, media_type="application/json")


def _check_host(written: str) -> None:
    host, colon, port = written.lower().rpartition(":")
    if not colon or not port.isdecimal():
        host = written.lower()
    if host not in LOCAL_HOSTS:
        raise _RefusedError(421, "Host", written, "is not this machine", f"use one of {', '.join(LOCAL_HOSTS)}")


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_POD:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> _RefusedError:
    fix = "leave out what does not concern scheduling"
    return _RefusedError(413, "body", "", f"is over {LARGEST_POD} bytes", fix)


async def _unknown(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if code == 405:  # noqa: PLR2004
        fix = f"use {headers.get('Allow', 'another')}"
        field, value = "method", request.method
        found = _problem(code, f"{request.method} does nothing at {request.url.path}: {fix}", field, value, fix)
        found.headers.update(headers)
        return found
    fix = "use POST /api/simulate-schedule or GET /api/allocation"
    return _problem(code, f"there is nothing at {request.url.path}: {fix}", "path", request.url.path[:253], fix)


def _problem(code: int, error: str, field: str = "", value: str = "", fix: str = "") -> Response:
    body = msgspec.json.encode(Problem(error=error, field=field, value=value, fix=fix))
    headers = {"Retry-After": "1"} if code == 503 else None  # noqa: PLR2004
    return Response(body, code, headers, media_type="application/json")
