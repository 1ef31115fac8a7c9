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


class Offer(msgspec.Struct, frozen=True):
    """What a source says now; with ``problem`` it could not be read.

    Attributes:
        revision: Grows with every change of the source.
    """

    origin: str
    text: bytes
    revision: int
    problem: str = ""

    @property
    def digest(self) -> str:
        """Hash of what is said."""
        return hashlib.blake2b(self.text + self.problem.encode(), digest_size=8).hexdigest()


class RuleSource(Protocol):
    """A place where rules are written."""

    def offers(self) -> AsyncIterator[Offer]:
        """Yield what is written, at first and after every change."""


class FileSource:
    """A file, such as a key of a mounted ConfigMap."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield what the file says, at first and after every change."""
        last = ""
        while True:
            offer = await asyncio.to_thread(self._read)
            if offer.digest != last:
                last = offer.digest
                yield offer
            await asyncio.sleep(LOOK_EVERY_S)

    def _read(self) -> Offer:
        origin = str(self._path)
        try:
            return Offer(origin, self._path.read_bytes(), self._path.stat().st_mtime_ns)
        except OSError as error:
            return Offer(origin, b"", 0, f"{origin} cannot be read: {error.strerror}")


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
