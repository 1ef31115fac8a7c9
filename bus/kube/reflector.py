"""The reflector: a complete view of one resource, kept by list and watch.

It lists in pages, watches from the list's version, resumes where a watch ended (they end at any moment), lists anew when
the server has forgotten that version (410), and then tells what had vanished meanwhile. It survives an API server that is
away, waits with jitter, and heeds ``Retry-After``.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import GONE, KubeError, KubeRefusedError, KubeUnreachableError
from schemas.kube.core import ObjectMeta

log = logging.getLogger("gpubus.kube")

PAGE: Final = 500
WATCH_S: Final = 290
"""Most seconds of one watch; each is a little shorter, so that many do not end together."""

SILENCE_S: Final = 100.0
"""A watch in which nothing comes for so long is given up: a bookmark is due about every minute."""

_LONGEST_WAIT_S: Final = 30.0
_SHORT_S: Final = 1.0


class KubeObject(Protocol):
    """An object as far as we read it."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its name and version."""


T = TypeVar("T", bound=KubeObject)
T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)


class View(Protocol[T_contra]):
    """Who wants to know. Calls come in the server's order, from the event loop; they must not block or raise."""

    def put(self, item: T_contra) -> None:
        """The object is so, since the version it carries."""

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The object is no more, since ``version`` at the latest."""

    def complete(self, version: int) -> None:
        """A list has ended: everything that existed at ``version`` has been told."""


class Resource(msgspec.Struct, frozen=True):
    """Which objects, and what of them is decoded."""

    api: str
    plural: str
    struct: type[Any]
    field_selector: str = ""
    namespace: str = ""
    """The only namespace to look in; empty looks in all, which takes rights in all."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    """What tells an object apart; a bookmark has a version only."""

    resource_version: str
    name: str = ""
    namespace: str = ""


class _Placed(msgspec.Struct, frozen=True):
    metadata: _Place


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


class ReflectorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    objects: int
    lists: int
    watches: int
    events: int
    undecodable: int


_page = msgspec.json.Decoder(_Page)
_event = msgspec.json.Decoder(_WatchEvent)
_placed = msgspec.json.Decoder(_Placed)
_failure = msgspec.json.Decoder(_Failure)


class _ExpiredError(Exception):
    """The server has forgotten the version that we know."""


async def _at_once() -> None:
    await asyncio.sleep(0)


class Reflector(Generic[T]):
    """Keeps ``view`` up to date with ``resource``. ``pace`` is awaited between the pages of a list: a view may need time.

    Attributes:
        loaded: Set once everything has been told for the first time.
    """

    def __init__(
        self, client: Client, resource: Resource, view: View[T], *, pace: Callable[[], Awaitable[None]] = _at_once
    ) -> None:
        self._client = client
        self._resource = resource
        self._view = view
        self._pace = pace
        self._path = resource_path(resource.api, resource.plural, resource.namespace)
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(resource.struct)
        self._known: set[tuple[str, str]] = set()
        self._version = 0
        self._now = asyncio.get_running_loop().time
        self._heard: float | None = None
        self.loaded = asyncio.Event()
        self._lists = self._watches = self._events = self._undecodable = 0

    @property
    def plural(self) -> str:
        """What it keeps a view of."""
        return self._resource.plural

    @property
    def age_s(self) -> float:
        """Seconds since the view was last known to be current; a watch that is open keeps it current."""
        return float("inf") if self._heard is None else self._now() - self._heard

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                self._watches += 1
                began = self._now()
                await self._watch()
                if self._now() - began > _SHORT_S:
                    failures = 0
                    continue
                wait = 0.0  # a server that ends every watch at once is not to be asked in a circle
            except _ExpiredError as error:
                log.info("%s: %s; listing anew", self._resource.plural, error)
                self._version = 0
                wait = 0.0
            except KubeRefusedError as error:
                wait = error.retry_after_s
                if error.code == GONE:
                    self._version = 0
                log.warning("%s", error)
            except KubeError as error:
                wait = 0.0
                log.info("%s", error)
            failures += 1
            pause = min(0.05 * 2 ** min(failures, 20), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311  jitter
            await asyncio.sleep(max(wait, pause))

    async def _list(self) -> None:
        """Tell everything, page by page, and then what is no more."""
        self._lists += 1
        seen: set[tuple[str, str]] = set()
        query = {"limit": str(PAGE)} | self._selector()
        while True:
            page = _page.decode(await self._client.call("GET", self._path, query=query, timeout=60.0))
            version = int(page.metadata.resource_version)
            for raw in page.items:
                self._put(raw, seen)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
            del page  # while the view takes it in there need not be two
            await self._pace()
        gone, self._known = self._known - seen, seen
        for namespace, name in sorted(gone):
            self._view.gone(namespace, name, version)
        self._version = version
        self._heard = self._now()
        self._view.complete(version)
        self.loaded.set()

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(WATCH_S - random.randrange(60)),  # noqa: S311  jitter
        } | self._selector()
        async with contextlib.aclosing(self._client.lines(self._path, query, silence_s=SILENCE_S)) as answer:
            async for lines in answer:
                for line in lines:
                    self._on_line(line)
                self._heard = self._now()
                await asyncio.sleep(0)  # a burst of events must not keep everybody else waiting
        self._heard = self._now()

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": self._resource.field_selector} if self._resource.field_selector else {}

    def _on_line(self, line: bytes) -> None:
        if not line:
            return
        try:
            event = _event.decode(line)
            if event.type == "ERROR":
                failure = _failure.decode(event.object)
                if failure.code == GONE:
                    raise _ExpiredError(failure.message)
                raise KubeUnreachableError(f"watch of {self._path}", failure.message)
            if event.type != "BOOKMARK":
                self._events += 1
            if event.type in ("ADDED", "MODIFIED"):
                self._version = self._put(event.object, self._known)
                return
            place = _placed.decode(event.object).metadata
        except msgspec.DecodeError as error:
            raise KubeUnreachableError(f"watch of {self._path}", f"unreadable: {error}") from None
        version = int(place.resource_version)
        if event.type == "DELETED":
            key = (place.namespace, place.name)
            self._known.discard(key)
            self._view.gone(*key, version)
        self._version = version

    def _put(self, raw: msgspec.Raw, seen: set[tuple[str, str]]) -> int:
        """Tell one object and return its version. What cannot be read is not told, but not taken for gone either."""
        try:
            item = self._decoder.decode(raw)
        except msgspec.DecodeError as error:
            self._undecodable += 1
            place = _placed.decode(raw).metadata
            log.error("%s %s/%s cannot be read: %s", self._resource.plural, place.namespace, place.name, error)  # noqa: TRY400
            seen.add((place.namespace, place.name))
            return int(place.resource_version)
        meta = item.metadata
        seen.add((meta.namespace, meta.name))
        self._view.put(item)
        return meta.version

    def statistics(self) -> ReflectorStatistics:
        """Return the counters of this reflector."""
        return ReflectorStatistics(
            objects=len(self._known),
            lists=self._lists,
            watches=self._watches,
            events=self._events,
            undecodable=self._undecodable,
        )
