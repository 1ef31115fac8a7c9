"""Which pod asks: the API server says of a token which pod it was issued to.

Source: Kubernetes ``authentication.k8s.io/v1`` TokenReview of bound service account tokens.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bus.kube.client import Client
from bus.kube.errors import KubeError
from producers.gateway.access import DeniedError

REMEMBERED: Final = 8192
FRESH_S: Final = 30.0
"""How long the API server's word about a token counts."""

POD_UID: Final = "authentication.kubernetes.io/pod-uid"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
"""What the API server knows of the pod that a token is bound to. Source: Kubernetes, bound service account tokens."""

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT: Final = "system:serviceaccount:"


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _Spoken(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Spoken = _Spoken()


_review = msgspec.json.Decoder(_Review)


class PodIdentity(msgspec.Struct, frozen=True):
    """The pod that a token was issued to."""

    namespace: str
    name: str
    uid: str


class Callers:
    """Asks the API server which pod a token is of.

    Args:
        client: The session with the API server; its account may create token reviews.
        clock: Returns seconds; for how long answers count.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[bytes, tuple[float, PodIdentity]] = {}

    async def identify(self, token: str) -> PodIdentity:
        """Return the pod of a token.

        Raises:
            DeniedError: It is no pod's, or nobody can say.
        """
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        since, found = self._known.get(key, (now - FRESH_S, None))
        if found is not None and now - since < FRESH_S:
            return found
        found = await self._ask(token)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = (now, found)
        return found

    async def _ask(self, token: str) -> PodIdentity:
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}
        }  # fmt: skip
        try:
            answer = await self._client.call("POST", _REVIEWS, body=msgspec.json.encode(body), timeout=5.0)
            said = _review.decode(answer).status
        except (KubeError, msgspec.DecodeError) as error:
            raise DeniedError(503, f"the API server cannot say whose the token is ({error})", "try again") from None
        user = said.user
        uid, name = (next(iter(user.extra.get(key, ())), "") for key in (POD_UID, POD_NAME))
        if not said.authenticated or not user.username.startswith(_ACCOUNT) or not uid or not name:
            fix = "send the token that is mounted in the client's pod as Authorization: Bearer TOKEN"
            raise DeniedError(401, "the token is no pod's", fix)
        return PodIdentity(user.username.removeprefix(_ACCOUNT).partition(":")[0], name, uid)
