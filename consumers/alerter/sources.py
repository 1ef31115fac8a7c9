"""Where rules are written: a file, or a key of a ConfigMap. A source tells what it says whenever that changes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bus.kube.client import Client
from bus.kube.reflector import Reflector, Resource
from bus.tasks import end
from schemas.kube.core import ObjectMeta

LOOK_EVERY_S: Final = 2.0
"""A mounted ConfigMap changes by a rename that no notification reaches us of, so a file is looked at."""


MOST_BYTES: Final = 4 << 20
"""A ConfigMap holds one MiB; a thousand long rules are less than three."""


class Offer(msgspec.Struct, frozen=True):
    """What a source says now; with ``problem`` it could not be read.

    Attributes:
        revision: Grows with every change of the source; 0 when it could never be read, so that nobody knows.
    """

    origin: str
    text: bytes
    revision: int
    problem: str = ""

    @property
    def digest(self) -> str:
        """Hash of what is said."""
        return hashlib.blake2b(self.text + self.problem.encode(), digest_size=8).hexdigest()


class RulesFileError(ValueError):
    """A file cannot hold rules."""


def read_rules(path: Path, *, regular: bool = False) -> bytes:
    """Return what a file of rules says.

    Args:
        path: The file.
        regular: Take no pipes and devices: reading one may never end.

    Raises:
        OSError: It cannot be read.
        RulesFileError: It is longer than any rules are, or no regular file.
    """
    if regular and path.exists() and not path.is_file():
        raise RulesFileError("it is no regular file: name one with rules")
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise RulesFileError(f"it is larger than {MOST_BYTES >> 20} MiB: name a file with rules")
    return text


class RuleSource(Protocol):
    """A place where rules are written."""

    def offers(self) -> AsyncIterator[Offer]:
        """Yield what is written, at first and after every change."""


class FileSource:
    """A file, such as a key of a mounted ConfigMap."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._revision = 0
        self._last = ""

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield what the file says, at first and after every change."""
        while True:
            offer = await asyncio.to_thread(self._read)
            if offer.digest != self._last:
                self._last = offer.digest
                yield offer
            await asyncio.sleep(LOOK_EVERY_S)

    def _read(self) -> Offer:
        origin = str(self._path)
        try:
            text, changed = read_rules(self._path, regular=True), self._path.stat().st_ctime_ns
        except (OSError, RulesFileError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Offer(origin, b"", self._revision, f"{origin} cannot be read: {reason}")
        offer = Offer(origin, text, changed)
        if offer.digest == self._last:
            return offer
        # An older file put in the place of a newer one, as a link to an earlier release, is said later all the same.
        self._revision = max(changed, self._revision + 1)
        return msgspec.structs.replace(offer, revision=self._revision)


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class ConfigMapSource:
    """A key of a ConfigMap, watched.

    Args:
        client: Session with the API server.
        namespace: Namespace of the ConfigMap.
        name: Its name.
        key: Its key.
    """

    def __init__(self, client: Client, namespace: str, name: str, key: str) -> None:
        self._client = client
        self._namespace, self._name, self._key = namespace, name, key
        self._origin = f"ConfigMap {namespace}/{name}"
        self._said: asyncio.Queue[Offer] = asyncio.Queue()
        self._there = False

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield what the key says, at first and after every change."""
        resource = Resource("v1", "configmaps", _ConfigMap, f"metadata.name={self._name}", namespace=self._namespace)
        reflector: Reflector[_ConfigMap] = Reflector(self._client, resource, self)
        running = asyncio.create_task(reflector.run(), name="rules-configmap")
        last = ""
        try:
            while True:
                offer = await self._said.get()
                if offer.digest != last:
                    last = offer.digest
                    yield offer
        finally:
            await end(running)

    def put(self, item: _ConfigMap) -> None:
        """The ConfigMap is so."""
        self._there = True
        text = item.data.get(self._key)
        problem = "" if text is not None else f"{self._origin} has no key {self._key}"
        revision = int(item.metadata.resource_version or 0)
        self._said.put_nowait(Offer(self._origin, (text or "").encode(), revision, problem))

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The ConfigMap is no more: its rules stay in force."""
        del namespace, name
        self._there = False
        self._missing(version)

    def complete(self, version: int) -> None:
        """Everything that exists has been told."""
        if not self._there:
            self._missing(version)

    def _missing(self, version: int) -> None:
        self._said.put_nowait(Offer(self._origin, b"", version, f"{self._origin} does not exist"))
