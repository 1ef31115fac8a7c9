"""The REST interface: questions over HTTP, which inspectors answer. ``/api/v1`` in clear words, ``/api`` in TensorFusion's.

Where nobody is asked who they are it is served to the machine itself only. A page in a browser there cannot use it either: it
would have to name another host (DNS rebinding), or send a media type that browsers ask about first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bus.errors import CallError, CallTimeoutError, NoResponderError
from producers.gateway.access import Access, DeniedError, bearer
from producers.gateway.body import GoneError, TooLargeError, read_body
from producers.gateway.manifest import JSON_TYPES, YAML_TYPES, read_pod
from producers.gateway.openapi import DOCUMENT, OPERATIONS, Operation, openapi
from schemas.dialects import RequestError
from schemas.inspection import Answer, Problem, Query, Simulate

log = logging.getLogger("gpubus.gateway")

LARGEST_POD: Final = 256 << 10
"""Bytes of a pod: what the API server allows for its annotations alone; what is larger would not fit on the bus with quotes."""

AT_ONCE: Final = 8
"""Questions in flight: each takes time of the process that admissions wait for."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class Inspectors(Protocol):
    """Whoever answers questions."""

    async def ask(self, query: Query) -> Answer:
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
        access: Who may; None for everybody who reaches it, who must then be on this machine.
    """

    def __init__(self, inspectors: Inspectors, access: Access | None = None) -> None:
        self._inspectors = inspectors
        self._access = access
        self._room = AT_ONCE
        self._document = msgspec.json.encode(openapi(version("gpubus")))
        routes = [
            Route(one.path, self._guarded(partial(self._answer, one)), methods=[one.method.upper()])
            for one in OPERATIONS
        ]
        self.app = Starlette(
            routes=[*routes, Route(DOCUMENT, self._guarded(self._describe), methods=["GET"])],
            exception_handlers={HTTPException: _unknown},
        )

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if self._room == 0:
                return _problem(503, "too many questions at once: try again")
            self._room -= 1
            try:
                await self._check(request)
                return await answer(request)
            except _RefusedError as error:
                return error.answer
            except DeniedError as error:
                return _denied(error)
            except TooLargeError:
                return _too_large().answer
            except GoneError:
                return Response(status_code=400)
            finally:
                self._room += 1

        return guarded

    async def _check(self, request: Request) -> None:
        if self._access is None:
            _check_host(request.headers.get("host", ""))
        else:
            token = bearer(request.headers.get("authorization", ""))
            await self._access.check(token, request.method.lower(), request.url.path)

    async def _describe(self, _: Request) -> Response:
        return Response(self._document, media_type="application/json")

    async def _answer(self, operation: Operation, request: Request) -> Response:
        if operation.query is not Simulate:
            return await self._ask(_query(operation, request))
        written = request.headers.get("content-type", "")
        media_type = written.partition(";")[0].strip().lower()
        if media_type not in (*JSON_TYPES, *YAML_TYPES):
            fix = "send application/yaml or application/json; with curl use --data-binary too"
            raise _RefusedError(415, "Content-Type", written, "is neither YAML nor JSON", fix)
        _query(operation, request)
        body = await read_body(request.receive, LARGEST_POD)
        try:
            pod = await asyncio.to_thread(read_pod, body, media_type)
        except RequestError as error:
            return _problem(400, str(error), field=error.field, value=error.value[:253], fix=error.fix)
        if len(bytes(pod.pod)) > 2 * LARGEST_POD:
            raise _too_large()
        return await self._ask(msgspec.structs.replace(pod, clear=operation.clear))

    async def _ask(self, query: Query) -> Response:
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


def _query(operation: Operation, request: Request) -> Query:
    """Return what the parameters of a request ask for."""
    known = operation.parameters
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            fix = f"use {', '.join(known)}" if known else "leave it out"
            raise _RefusedError(400, name[:253], value, "is no parameter of this question", fix)
        if name in found:
            raise _RefusedError(400, name, value, "stands twice", "keep one of them")
        found[name] = value
    if operation.query is Simulate:
        return Simulate(pod=msgspec.Raw(b"{}"), namespace="default", name="pod")
    for name, value in found.items():
        try:
            msgspec.convert({name: value}, operation.query, strict=False)
        except msgspec.ValidationError as error:
            fix = str(error).partition(" - at ")[0].lower()
            raise _RefusedError(400, name, value, "is no value of it", fix) from None
    return msgspec.convert(found, operation.query, strict=False)


def _check_host(written: str) -> None:
    host, colon, port = written.lower().rpartition(":")
    if not colon or not port.isdecimal():
        host = written.lower()
    if host not in LOCAL_HOSTS:
        raise _RefusedError(421, "Host", written, "is not this machine", f"use one of {', '.join(LOCAL_HOSTS)}")


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
    fix = f"GET {DOCUMENT} says what there is"
    return _problem(code, f"there is nothing at {request.url.path[:253]}: {fix}", "path", request.url.path[:253], fix)


def _denied(error: DeniedError) -> Response:
    found = _problem(error.code, str(error), field="Authorization", fix=error.fix)
    if error.code == 401:  # noqa: PLR2004
        found.headers["WWW-Authenticate"] = "Bearer"
    return found


def _problem(code: int, error: str, field: str = "", value: str = "", fix: str = "") -> Response:
    body = msgspec.json.encode(Problem(error=error, field=field, value=value, fix=fix))
    headers = {"Retry-After": "1"} if code == 503 else None  # noqa: PLR2004
    return Response(body, code, headers, media_type="application/json")
