"""What can go wrong on the bus, each as a type with the facts in fields."""

from typing import Final

NO_MESSAGE: Final = 10037
"""``err_code`` of an :class:`ApiError`: the stream holds no such message."""


class BusError(Exception):
    """Base of all errors of the bus."""


class BusUnreachableError(BusError):
    """No server answered within the time allowed."""

    def __init__(self, servers: str, seconds: float, cause: str) -> None:
        super().__init__(
            f"NATS is unreachable at {servers} (tried for {seconds:g} s: {cause}): "
            "start it, or point --nats at a running server",
        )
        self.servers = servers
        self.seconds = seconds
        self.cause = cause


class SecurityError(BusError):
    """What is to be shown to the bus, or trusted, is incomplete or cannot be read. The message names it and the fix."""


class ApiError(BusError):
    """JetStream refused a request."""

    def __init__(self, request: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream refused {request}: {description} (code {code}, err_code {err_code})")
        self.request = request
        self.code = code
        self.err_code = err_code
        self.description = description


class PublishUnconfirmedError(BusError):
    """The publish was sent but no acknowledgement came: it may or may not be stored, now or later."""

    def __init__(self, subject: str, cause: str) -> None:
        super().__init__(f"publish on {subject} was not confirmed: {cause}")
        self.subject = subject
        self.cause = cause


class ConflictError(BusError):
    """A compare-and-set lost: the subject has a newer message than the one the writer had seen.

    Attributes:
        ambiguous: An earlier attempt of the same publish went unconfirmed, so the newer message may be the writer's own.
    """

    def __init__(self, subject: str, expected: int | None, *, ambiguous: bool = False) -> None:
        super().__init__(f"{subject} has moved on from sequence {expected}")
        self.subject = subject
        self.expected = expected
        self.ambiguous = ambiguous


class PlaceLostError(BusError):
    """A subscriber wants to go on behind a message that the stream has never held: it was deleted and made again.

    What was in the old stream and had not been read is lost; ``after=0`` reads all that the new one holds.

    Attributes:
        stream: Name of the stream.
        after: The sequence that was asked for.
        last: The last that the stream has.
    """

    def __init__(self, stream: str, after: int, last: int) -> None:
        super().__init__(
            f"stream {stream} ends at {last} and is to be read behind {after}: it was deleted and made again since. "
            "Begin anew with after=0, and expect to hear what you know already"
        )
        self.stream = stream
        self.after = after
        self.last = last


class UndecodableError(BusError):
    """A message is not a valid event."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallError(BusError):
    """A request/reply call failed: nobody answered, or the answer was an error."""

    def __init__(self, service: str, reason: str) -> None:
        super().__init__(f"call to {service} failed: {reason}")
        self.service = service
        self.reason = reason


class NoResponderError(CallError):
    """Nobody answers to the service: no process of that role runs."""


class CallTimeoutError(CallError):
    """No answer came in time."""
