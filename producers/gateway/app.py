"""What the gateway answers on which path.

``/mutate-v1-pod`` and ``/webhook`` (the path that HAMi's configuration names) take admission reviews, ``/extender/…`` the verbs
of a kube-scheduler that we know, ``/api/connection`` tells clients of remote workers where those are, ``/healthz`` says that the
process lives, ``/readyz`` that a mutator answers.
"""

import logging
import re
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bus.errors import CallError
from producers.gateway.body import GoneError, TooLargeError, read_body
from producers.gateway.connections import PATH, Connections
from producers.gateway.extender import PREFIX, Extender
from producers.gateway.review import BadReviewError, answer, concerns_us, question, read
from producers.gateway.said import NOT_ALLOWED, UNAVAILABLE, Said
from schemas.admission import Admit, Decided

log = logging.getLogger("gpubus.gateway")

LARGEST_BODY: Final = 4 << 20
"""A review of the largest object that etcd takes (1.5 MiB), twice over: old and new, and room for its envelope."""

REVIEWS: Final = ("/mutate-v1-pod", "/webhook")
"""Paths that take admission reviews, TensorFusion's and HAMi's."""

KNOWN: Final = "certificate"
"""Key in a request's state: the names in the certificate that its connection has shown, which has then been verified; or None."""

UNKNOWN: Final = (
    b"gpubus: the extender's verbs are for a kube-scheduler with a client certificate: start the gateway with --client-ca, and "
    b"give kube-scheduler one in its extender's tlsConfig (gpubus schema scheduler --client-certificate), of the name that "
    b"--client-name has where that is given"
)

DEFAULT_TIMEOUT_S: Final = 10.0
MARGIN: Final = 0.9
"""Part of the API server's patience that is ours: an answer that comes as it gives up is a failed request for the user."""

LONGEST_QUERY: Final = 256
"""Bytes of a query that is looked at."""

_SECONDS: Final = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class Mutators(Protocol):
    """Whoever answers admissions."""

    async def admit(self, request: Admit, timeout: float) -> Decided:
        """Ask what is to become of a pod.

        Raises:
            CallError: Nobody could say in time.
        """

    async def ready(self) -> bool:
        """Whether somebody answers."""


class GatewayStatistics(msgspec.Struct):
    """Counters since the start; ``unknown`` counts who asked for extender verbs without a certificate."""

    admitted: int = 0
    refused: int = 0
    unanswered: int = 0
    bad: int = 0
    overloaded: int = 0
    unknown: int = 0


class Gateway:
    """The ASGI application and its counters.

    Args:
        mutators: Where reviews go.
        extender: What answers kube-scheduler's extender verbs.
        open_to_all: Whether whoever asks for those verbs need not say who they are, for nobody else can reach us.
        connections: What answers clients of remote workers; None where none are.
        clients: Names of which one must be in the certificate of whoever asks for them; empty for any that was verified.
        concurrency: Reviews in flight; further ones are turned away at once, so that those inside keep their deadline.
    """

    def __init__(
        self,
        mutators: Mutators,
        extender: Extender,
        *,
        open_to_all: bool = False,
        connections: Connections | None = None,
        clients: frozenset[str] = frozenset(),
        concurrency: int = 256,
    ) -> None:
        self._mutators = mutators
        self._extender = extender
        self._open, self._clients = open_to_all, clients
        self._room = concurrency
        self.statistics = GatewayStatistics()
        self._routes = Starlette(
            routes=[
                Route("/healthz", self._alive, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                *([Route(PATH, connections.answer, methods=["GET"])] if connections is not None else []),
            ]
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Reviews and verbs go past the routes: a fifth of their time would go into being found."""
        if scope["type"] == "http" and scope["path"] in REVIEWS:
            await (await self._review(scope, receive)).send(send)
        elif scope["type"] == "http" and scope["path"].startswith(f"{PREFIX}/"):
            await (await self._verb(scope, receive)).send(send)
        else:
            await self._routes(scope, receive, send)

    async def _verb(self, scope: Scope, receive: Receive) -> Said:
        """Whoever may ask for verbs may have pods bound: that is for the kube-scheduler whose certificate we know."""
        if not self._open and not self._knows(scope.get("state", {}).get(KNOWN)):
            self.statistics.unknown += 1
            return Said(401, UNKNOWN)
        return await self._extender.answer(scope, receive)

    def _knows(self, names: frozenset[str] | None) -> bool:
        return names is not None and (not self._clients or bool(names & self._clients))

    async def _alive(self, _: Request) -> Response:
        return PlainTextResponse("ok")

    async def _ready(self, _: Request) -> Response:
        if await self._mutators.ready():
            return PlainTextResponse("ok")
        return PlainTextResponse("no mutator answers: is the role mutator running?", 503)

    async def _review(self, scope: Scope, receive: Receive) -> Said:
        if scope["method"] != "POST":
            return Said(NOT_ALLOWED, b"gpubus: an admission review is sent with POST")
        if self._room == 0:
            self.statistics.overloaded += 1
            return Said(UNAVAILABLE, b"gpubus: too many admissions at once, try again")
        self._room -= 1
        try:
            return await self._answer(scope, receive)
        finally:
            self._room += 1

    async def _answer(self, scope: Scope, receive: Receive) -> Said:
        try:
            review = read(await read_body(receive, LARGEST_BODY))
        except TooLargeError as error:
            self.statistics.bad += 1
            return Said(400, f"gpubus: {error}: no pod is that large".encode())
        except BadReviewError as error:
            self.statistics.bad += 1
            return Said(400, f"gpubus: {error}".encode())
        except GoneError:
            self.statistics.bad += 1
            return Said(400, b"")
        decided = Decided(allowed=True)
        if concerns_us(review):
            try:
                decided = await self._mutators.admit(question(review), patience_of(scope["query_string"]))
            except CallError as error:
                self.statistics.unanswered += 1
                log.warning("pod in namespace %s was not admitted: %s", review.namespace, error)
                text = f"gpubus: this pod asks for GPUs and nobody can admit it just now ({error}); try again"
                return Said(UNAVAILABLE, text.encode())
        self.statistics.admitted += decided.allowed
        self.statistics.refused += not decided.allowed
        return Said(200, answer(review.uid, decided), b"application/json")


@lru_cache(maxsize=64)  # an API server writes one and the same
def patience_of(query: bytes) -> float:
    """Return the seconds that an answer may take, by the query of a review's URL, such as ``timeout=10s``."""
    words = parse_qs(query[:LONGEST_QUERY].decode("latin-1"))
    return MARGIN * timeout_of(words.get("timeout", [""])[-1])


def timeout_of(written: str) -> float:
    """Return the seconds of the API server's ``?timeout=10s``; the default for what is no Go duration of minutes and seconds."""
    found = _SECONDS.fullmatch(written)
    if not written or found is None:
        return DEFAULT_TIMEOUT_S
    seconds = 60 * int(found[1] or 0) + float(found[2] or 0)
    return min(seconds, 60.0) if seconds > 0 else DEFAULT_TIMEOUT_S
