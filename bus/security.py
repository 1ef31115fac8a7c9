"""How a process proves to the bus who it is, and checks that the bus is what it says.

Files rather than values, as Kubernetes mounts them from Secrets. They are read again whenever the connection was lost, so a
rotated certificate or password needs no restart: the server closes the connection of the old one, and the new one is taken.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bus.errors import SecurityError

_PREFIX: Final = "GPUBUS_NATS_"


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """What to show and whom to believe.

    Attributes:
        ca: Certificates of the authorities that may have signed the server's; None trusts those of the system.
        certificate: Our own certificate with its chain, where the server wants one.
        key: Its private key.
        user: Name to log in with.
        password: File that holds the password; a line break at its end does not count.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str = ""
    password: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Security":
        """Read ``GPUBUS_NATS_CA``, ``_CERTIFICATE``, ``_KEY``, ``_USER`` and ``_PASSWORD_FILE``; empty ones count as absent.

        Raises:
            SecurityError: One needs another that is not given.
        """
        given = {
            name: environment.get(f"{_PREFIX}{name}", "") for name in ("CA", "CERTIFICATE", "KEY", "PASSWORD_FILE")
        }
        files = {name: Path(text) if text else None for name, text in given.items()}
        user = environment.get(f"{_PREFIX}USER", "")
        for one, other in (("CERTIFICATE", "KEY"), ("KEY", "CERTIFICATE")):
            if given[one] and not given[other]:
                raise SecurityError(f"{_PREFIX}{one} is {given[one]!r} without {_PREFIX}{other}: set both or neither")
        if bool(user) != bool(given["PASSWORD_FILE"]):
            raise SecurityError(f"{_PREFIX}USER and {_PREFIX}PASSWORD_FILE go together: set both or neither")
        return cls(
            ca=files["CA"],
            certificate=files["CERTIFICATE"],
            key=files["KEY"],
            user=user,
            password=files["PASSWORD_FILE"],
        )

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS connections are made with; None leaves it to the address whether there is any.

        Raises:
            SecurityError: A file cannot be read, or is no certificate or key.
        """
        if self.ca is None and self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the authorities named, and none besides
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Have ``context`` take the files as they are now.

        Raises:
            SecurityError: As for :meth:`context`.
        """
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise SecurityError(
                f"TLS files {named}: {error.strerror or error}; they must be readable PEM files"
            ) from None

    def secret(self) -> str | None:
        """Return the password as it is now, or None if there is none.

        Raises:
            SecurityError: Its file cannot be read.
        """
        if self.password is None:
            return None
        try:
            return self.password.read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SecurityError(f"password file {self.password}: {error}") from None


OPEN: Final = Security()
"""Shows nothing, and trusts the system's authorities where the address asks for TLS."""
