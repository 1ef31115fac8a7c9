"""What can go wrong when speaking to an API server, each as a type with the facts in fields."""

from typing import Final

import msgspec

GONE: Final = 410
CONFLICT: Final = 409
NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429


class KubeError(Exception):
    """Base of all errors of an API server."""


class KubeConfigError(KubeError):
    """There is no cluster to speak to, or its configuration cannot be used."""


class KubeUnreachableError(KubeError):
    """No answer came: a request that changes something may or may not have been carried out."""

    def __init__(self, request: str, cause: str) -> None:
        super().__init__(f"no answer to {request}: {cause}")
        self.request = request
        self.cause = cause


class StatusCause(msgspec.Struct, frozen=True):
    """One of the reasons of a refusal."""

    message: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """What a refusal is about."""

    kind: str = ""
    name: str = ""
    retry_after_seconds: int = 0
    causes: tuple[StatusCause, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """``metav1.Status``, the body of every refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()


class KubeRefusedError(KubeError):
    """The API server refused a request.

    Attributes:
        code: HTTP status.
        reason: CamelCase word, such as ``AlreadyExists``.
        kind: Resource that it is about; ``pods/binding`` for a pod that has its node already.
        name: The object that it is about; empty when it is about none, such as a path that is not served.
        causes: What led to it, such as the disruption budget that forbids an eviction.
        retry_after_s: Seconds after which to try again; 0 when it does not say.
    """

    def __init__(self, request: str, status: Status) -> None:
        super().__init__(f"{request} was refused: {status.message or status.reason} (code {status.code})")
        self.request = request
        self.code = status.code
        self.reason = status.reason
        self.message = status.message
        self.kind = status.details.kind
        self.name = status.details.name
        self.causes = tuple(cause.message for cause in status.details.causes if cause.message)
        self.retry_after_s = status.details.retry_after_seconds

    @property
    def transient(self) -> bool:
        """Whether the same request may be granted in a moment: throttled, starting, timed out."""
        return self.code == TOO_MANY_REQUESTS or self.code >= 500  # noqa: PLR2004  HTTP's own line
