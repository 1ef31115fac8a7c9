"""What the gateway answers on which path.

``/mutate-v1-pod`` and ``/webhook`` (the path that HAMi's configuration names) take admission reviews, ``/healthz`` says
that the process lives, ``/readyz`` that a mutator answers.
"""

import logging
import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bus.errors import CallError
from producers.gateway.body import TooLargeError, read_body
from producers.gateway.review import BadReviewError, answer, concerns_us, question, read
from schemas.admission import Admit, Admitted

log = logging.getLogger("gpubus.gateway")

LARGEST_BODY: Final = 4 << 20
"""A review of the largest object that etcd takes (1.5 MiB), twice over: old and new, and room for its envelope."""

REVIEWS: Final = ("/mutate-v1-pod", "/webhook")
"""Paths that take admission reviews, TensorFusion's and HAMi's."""

DEFAULT_TIMEOUT_S: Final = 10.0
MARGIN: Final = 0.9
"""Part of the API server's patience that is ours: an answer that comes as it gives up is a failed request for the user."""

_SECONDS: Final = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class Mutators(Protocol):
    """Whoever answers admissions."""

    async def admit(self, request: Admit, timeout: float) -> Admitted:
        """Ask what is to become of a pod.

        Raises:
            CallError: Nobody could say in time.
        """

    async def ready(self) -> bool:
        """Whether somebody answers."""


class GatewayStatistics(msgspec.Struct):
    """Counters since the start."""

    admitted: int = 0
    refused: int = 0
    unanswered: int = 0
    bad: int = 0
    overloaded: int = 0


class Gateway:
    """The ASGI application and its counters.

    Args:
        mutators: Where reviews go.
        routes: What else it answers.
        concurrency: Reviews in flight; further ones are turned away at once, so that those inside keep their deadline.
    """

    def __init__(self, mutators: Mutators, *, routes: Sequence[Route] = (), concurrency: int = 256) -> None:
        self._mutators = mutators
        self._room = concurrency
        self.statistics = GatewayStatistics()
        reviews = [Route(path, self._review, methods=["POST"]) for path in REVIEWS]
        self._routes = Starlette(
            routes=[
                *reviews,
                *routes,
                Route("/healthz", self._alive, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
            ]
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Reviews go past the routes: a tenth of their time would be spent on being found."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in REVIEWS:
            response = await self._review(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self._routes(scope, receive, send)

    async def _alive(self, _: Request) -> Response:
        return PlainTextResponse("ok")

    async def _ready(self, _: Request) -> Response:
        if await self._mutators.ready():
            return PlainTextResponse("ok")
        return PlainTextResponse("no mutator answers: is the role mutator running?", 503)

    async def _review(self, request: Request) -> Response:
        if self._room == 0:
            self.statistics.overloaded += 1
            return PlainTextResponse("gpubus: too many admissions at once, try again", 503, {"Retry-After": "1"})
        self._room -= 1
        try:
            return await self._answer(request)
        finally:
            self._room += 1

    async def _answer(self, request: Request) -> Response:
        try:
            review = read(await read_body(request, LARGEST_BODY))
        except TooLargeError as error:
            self.statistics.bad += 1
            return PlainTextResponse(f"gpubus: {error}: no pod is that large", 400)
        except BadReviewError as error:
            self.statistics.bad += 1
            return PlainTextResponse(f"gpubus: {error}", 400)
        except ClientDisconnect:
            self.statistics.bad += 1
            return Response(status_code=400)
        admitted = Admitted(allowed=True)
        if concerns_us(review):
            try:
                patience = MARGIN * timeout_of(request.query_params.get("timeout", ""))
                admitted = await self._mutators.admit(question(review), patience)
            except CallError as error:
                self.statistics.unanswered += 1
                log.warning("pod in namespace %s was not admitted: %s", review.namespace, error)
                text = f"gpubus: this pod asks for GPUs and nobody can admit it just now ({error}); try again"
                return PlainTextResponse(text, 503)
        self.statistics.admitted += admitted.allowed
        self.statistics.refused += not admitted.allowed
        return Response(answer(review.uid, admitted), media_type="application/json")


def timeout_of(written: str) -> float:
    """Return the seconds of the API server's ``?timeout=10s``; the default for what is no Go duration of minutes and seconds."""
    found = _SECONDS.fullmatch(written)
    if not written or found is None:
        return DEFAULT_TIMEOUT_S
    seconds = 60 * int(found[1] or 0) + float(found[2] or 0)
    return min(seconds, 60.0) if seconds > 0 else DEFAULT_TIMEOUT_S
