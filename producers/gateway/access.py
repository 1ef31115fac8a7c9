"""Who may use the REST interface, by a bearer token: one of a file, or one that the API server knows and lets.

Source: Kubernetes ``authentication.k8s.io/v1`` TokenReview, ``authorization.k8s.io/v1`` SubjectAccessReview.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from bus.kube.client import Client
from bus.kube.errors import KubeError

SHORTEST: Final = 16
"""Characters of a token in a file: what is shorter can be guessed."""

REMEMBERED: Final = 1024
FRESH_S: Final = 10.0
"""How long an answer of the API server counts: a token that was taken back works on for as long."""

PREFIX: Final = "/gpubus"
"""Put before paths when the API server is asked: everybody may ``get`` its own ``/api/*`` (ClusterRole ``system:discovery``)."""

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESSES: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class DeniedError(Exception):
    """Somebody may not ask; ``code`` is the HTTP status: 401 who are you, 403 not you, 503 nobody can say."""

    def __init__(self, code: int, problem: str, fix: str) -> None:
        super().__init__(f"{problem}: {fix}")
        self.code, self.problem, self.fix = code, problem, fix

    def again(self) -> "DeniedError":
        """Return the same anew: one that is raised twice would remember where it was raised before."""
        return DeniedError(self.code, self.problem, self.fix)


class Access(Protocol):
    """Whoever says who may ask."""

    async def check(self, token: str, verb: str, path: str) -> None:
        """Check a request with ``verb`` (in lower case) to ``path``.

        Raises:
            DeniedError: It may not be answered.
        """


class TokenFileError(ValueError):
    """A file of tokens cannot be used; the message names it and says why."""


class Tokens:
    """Tokens of a file, one a line, each with the name of whose it is: ``token,name``. All may ask everything.

    It is read again when it changes; one that cannot be used any more lets nobody in.

    Args:
        file: The file.

    Raises:
        TokenFileError: It cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mark: object = None
        self._tokens: tuple[bytes, ...] = ()
        self._read()

    def _read(self) -> None:
        try:
            stat = self._file.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark == self._mark:
                return
            lines = self._file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenFileError(f"the file of tokens {self._file} cannot be read: {error}") from None
        found = []
        for number, line in enumerate(lines, 1):
            written = line.strip()
            if not written or written.startswith("#"):
                continue
            token, comma, name = (part.strip() for part in written.partition(","))
            if not comma or not name or len(token) < SHORTEST or not token.isascii() or " " in token:
                raise TokenFileError(
                    f"line {number} of {self._file} is no token and name: write TOKEN,NAME, the token of {SHORTEST} ASCII "
                    "characters or more without blanks"
                )
            found.append(token.encode())
        if not found:
            raise TokenFileError(f"the file of tokens {self._file} has none: write TOKEN,NAME lines")
        self._tokens, self._mark = tuple(found), mark

    async def check(self, token: str, verb: str, path: str) -> None:
        """Check that the token is in the file."""
        del verb, path
        try:
            self._read()
        except TokenFileError as error:
            self._tokens, self._mark = (), None
            raise DeniedError(503, str(error), "ask an operator") from None
        given = token.encode()
        if not any([hmac.compare_digest(given, known) for known in self._tokens]):  # noqa: C419  all, in the same time
            raise _unknown()


class _Spoken(msgspec.Struct, frozen=True):
    """What we read of both reviews' status."""

    authenticated: bool = False
    allowed: bool = False
    denied: bool = False
    reason: str = ""
    user: dict[str, Any] = {}


class _Review(msgspec.Struct, frozen=True):
    status: _Spoken = _Spoken()


_review = msgspec.json.Decoder(_Review)


class Reviews:
    """Asks the API server whose a token is, and whether they may.

    A path of the REST interface is a non-resource URL to it, behind :data:`PREFIX`: a ClusterRole with ``nonResourceURLs:
    ["/gpubus/*"]`` and the verbs ``get`` and ``post`` lets its subjects ask everything.

    Args:
        client: The session with the API server; its account needs the rights of ``system:auth-delegator``.
        clock: Returns seconds; for how long answers count.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[bytes, tuple[float, DeniedError | None]] = {}

    async def check(self, token: str, verb: str, path: str) -> None:
        """Check that the token's user may."""
        key = hashlib.sha256(f"{verb} {path} {token}".encode()).digest()
        now = self._clock()
        since, denied = self._known.get(key, (now - FRESH_S, None))
        if now - since >= FRESH_S:
            denied = await self._ask(token, verb, path)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = (now, denied)
        if denied is not None:
            raise denied.again()

    async def _ask(self, token: str, verb: str, path: str) -> DeniedError | None:
        who = await self._create(_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not who.authenticated:
            return _unknown()
        user = who.user
        spec = {
            "nonResourceAttributes": {"path": f"{PREFIX}{path}", "verb": verb},
            **{key: user[name] for name, key in (("username", "user"), ("uid", "uid"), ("groups", "groups"))
               if user.get(name)},
        }  # fmt: skip
        if user.get("extra"):
            spec["extra"] = user["extra"]
        may = await self._create(_ACCESSES, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        if may.allowed and not may.denied:
            return None
        fix = f'bind it to a ClusterRole with nonResourceURLs ["{PREFIX}/*"] and the verb {verb}'
        return DeniedError(403, f"{user.get('username', '')!s:.100} may not {verb} {path}", fix)

    async def _create(self, path: str, api: str, kind: str, spec: dict[str, Any]) -> _Spoken:
        body = msgspec.json.encode({"apiVersion": api, "kind": kind, "spec": spec})
        try:
            return _review.decode(await self._client.call("POST", path, body=body, timeout=5.0)).status
        except (KubeError, msgspec.DecodeError) as error:
            raise DeniedError(503, f"the API server cannot say who may ask ({error})", "try again") from None


def _unknown() -> DeniedError:
    return DeniedError(401, "the token is not known here", "send another one as Authorization: Bearer TOKEN")


def bearer(header: str) -> str:
    """Return the token of an ``Authorization`` header.

    Raises:
        DeniedError: There is none.
    """
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise DeniedError(401, "nobody is asked without saying who they are", "send Authorization: Bearer TOKEN")
    return token
