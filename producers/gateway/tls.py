"""The gateway's certificate: read from files, and read again when they change, without a connection being dropped."""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger("gpubus.gateway")

LOOK_EVERY_S: Final = 5.0


class CertificateError(ValueError):
    """The files cannot be used; the message names them and says why."""


class Certificate:
    """A server context whose certificate follows its files.

    cert-manager and kubelet replace both files of a mounted Secret at once, by a link. Who replaces them one after the
    other is caught between the two for a moment: a pair that does not match is tried again, and the old one serves on. With
    ``clients``, a PEM file of authorities, clients may show certificates of theirs, and others are turned away.
    """

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self._files = (certificate, key)
        self._clients = clients
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if clients is not None:
            self.context.verify_mode = ssl.CERT_OPTIONAL  # an API server shows none: what takes one asks for it
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._marks()
        self.reloads = 0
        self._load()

    def _load(self) -> None:
        certificate, key = self._files
        try:
            with _held(certificate.read_bytes()) as chain, _held(key.read_bytes()) as secret:
                # Tried apart first: a context that has loaded one half of a new pair would serve nobody.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, secret)
                self.context.load_cert_chain(chain, secret)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(f"certificate {certificate} with key {key} cannot be used: {error}") from None
        if self._clients is not None:
            try:
                self.context.load_verify_locations(self._clients)
            except (OSError, ssl.SSLError) as error:
                raise CertificateError(f"authority of clients {self._clients} cannot be used: {error}") from None

    def _marks(self) -> tuple[object, ...]:
        marks: list[object] = []
        for path in (*self._files, *([self._clients] if self._clients is not None else [])):
            try:
                stat = path.stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(marks)

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether a new pair is in force."""
        marks = self._marks()
        if marks == self._seen:
            return False
        try:
            self._load()
        except CertificateError as error:
            log.warning("%s; the old one serves on", error)
            return False
        self._seen = marks
        self.reloads += 1
        log.info("serving with a new certificate")
        return True

    async def follow(self) -> None:
        """Look at the files every few seconds."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.refresh()


@contextlib.contextmanager
def _held(content: bytes) -> Iterator[str]:
    """Return a name under which the TLS library reads just this, whatever becomes of the file that it is from meanwhile."""
    fd = os.memfd_create("gpubus-tls")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
