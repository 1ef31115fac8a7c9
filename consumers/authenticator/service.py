"""The authenticator's shell: the server asks about a connection, the API server says whose token it has shown.

Any number of these share the questions. While none answers, agents cannot log in, and go on trying; who is connected stays.
"""

import asyncio
import logging
import time

import msgspec
from nats.aio.msg import Msg

from bus.connection import Bus
from bus.kube.client import Client
from bus.kube.errors import KubeError
from consumers.authenticator.claims import (
    Asked,
    RefusedError,
    Review,
    node_of,
    response_claims,
    user_claims,
)
from consumers.authenticator.nkeys import Signer, TokenError, verified

log = logging.getLogger("gpubus.authenticator")

SUBJECT = "$SYS.REQ.USER.AUTH"
REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
REVIEW_TIMEOUT_S = 3.0
"""The server waits for our answer as long as a client may take to log in."""


class AuthenticatorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    admitted: int
    refused: int
    failed: int


class _Reviewed(msgspec.Struct):
    status: Review


class Authenticator:
    """One authenticator process.

    Args:
        bus: The connection, of a user whom the server does not ask about.
        client: The API server.
        signer: The key that the server's configuration names as the issuer.
        account: The service account of agents, ``system:serviceaccount:<namespace>:<name>``.
        audience: What tokens of agents must be for.
    """

    def __init__(self, bus: Bus, client: Client, signer: Signer, *, account: str, audience: str) -> None:
        self._bus, self._client, self._signer = bus, client, signer
        self._account, self._audience = account, audience
        self._admitted = self._refused = self._failed = 0
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Answer until ``stop`` is set."""
        subscription = await self._bus.client.subscribe(SUBJECT, queue="gpubus", cb=self._on_request)
        await self._bus.client.flush()
        if ready is not None:
            ready.set()
        await stop.wait()
        if self._bus.client.is_connected:
            await subscription.unsubscribe()
        if self._running:
            await asyncio.wait(self._running, timeout=REVIEW_TIMEOUT_S)

    async def _on_request(self, message: Msg) -> None:
        task = asyncio.create_task(self._answer(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, message: Msg) -> None:
        try:
            asked = msgspec.convert(verified(message.data.decode())["nats"], Asked)
        except (TokenError, KeyError, UnicodeDecodeError, msgspec.ValidationError) as error:
            self._failed += 1
            log.warning("a request that no server has sent: %s", error)
            return
        now_s = int(time.time())
        try:
            node = node_of(await self._review(asked.connect_opts.password), self._account, self._audience)
            claims = response_claims(asked, now_s, user=self._signer.sign(user_claims(asked, node, now_s)))
            self._admitted += 1
        except RefusedError as error:
            self._refused += 1
            log.warning("a client that calls itself %.200r is not let in: %s", asked.connect_opts.user, error)
            claims = response_claims(asked, now_s, refusal="not an agent of this cluster")
        except KubeError as error:
            self._failed += 1
            log.warning("a client that calls itself %.200r waits: %s", asked.connect_opts.user, error)
            claims = response_claims(asked, now_s, refusal="the API server cannot be asked")
        await self._bus.client.publish(message.reply, self._signer.sign(claims).encode())

    async def _review(self, token: str) -> Review:
        if not token:
            raise RefusedError("it has shown no token")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        answer = await self._client.call("POST", REVIEW_PATH, body=msgspec.json.encode(body), timeout=REVIEW_TIMEOUT_S)
        return msgspec.json.decode(answer, type=_Reviewed).status

    def statistics(self) -> AuthenticatorStatistics:
        """Return the counters of this authenticator."""
        return AuthenticatorStatistics(admitted=self._admitted, refused=self._refused, failed=self._failed)
