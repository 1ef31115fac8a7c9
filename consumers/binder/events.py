"""Kubernetes Events about pods: best effort, beside the work, each said once.

An event's name is derived from the pod and what is said of it, so saying it again, here or in another replica, is refused
by the API server as existing already.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeError, KubeRefusedError
from bus.tasks import end

log = logging.getLogger("gpubus.binder")

CONTROLLER: Final = "gpubus.io/binder"
WAITING: Final = 2048
"""Events that wait to be written; more are dropped, and counted."""

WRITERS: Final = 4
REMEMBERED: Final = 8192
_NOTE_LENGTH: Final = 1024
_POD_LENGTH: Final = 200


class Note(msgspec.Struct, frozen=True):
    """What is to be said about a pod."""

    namespace: str
    name: str
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


class Events:
    """Writes notes as Events.

    Attributes:
        written: Events that the API server has taken.
        dropped: Events lost because too many waited or the API server refused them.
    """

    def __init__(self, client: Client, instance: str) -> None:
        self._client = client
        self._instance = instance
        self._queue: asyncio.Queue[Note] = asyncio.Queue(WAITING)
        self._said: OrderedDict[str, None] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self.written = self.dropped = 0

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._write_all(), name="kube-events") for _ in range(WRITERS)]

    async def stop(self, seconds: float = 2.0) -> None:
        """Write what waits, for a little while."""
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            self.dropped += self._queue.qsize()
        await end(*self._tasks)

    def say(self, note: Note) -> None:
        """Have a note written, unless the same was said lately."""
        name = event_name(note)
        if name in self._said:
            self._said.move_to_end(name)
            return
        self._said[name] = None
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        try:
            self._queue.put_nowait(note)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _write_all(self) -> None:
        while True:
            note = await self._queue.get()
            try:
                await self._write(note)
            except KubeError as error:
                self.dropped += 1
                log.info("event about pod %s/%s: %s", note.namespace, note.name, error)
            finally:
                self._queue.task_done()

    async def _write(self, note: Note) -> None:
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": event_name(note), "namespace": note.namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": note.action,
            "reason": note.reason,
            "type": note.type,
            "note": note.note[:_NOTE_LENGTH],
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": note.namespace,
                "name": note.name,
                "uid": note.uid,
            },
        }
        path = resource_path("events.k8s.io/v1", "events", note.namespace)
        try:
            await self._client.call("POST", path, body=msgspec.json.encode(event))
        except KubeRefusedError as error:
            if error.code not in (CONFLICT, NOT_FOUND):  # said already, or the namespace is gone
                raise
        else:
            self.written += 1


def event_name(note: Note) -> str:
    """Return the name of a note's Event: the same for the same pod, reason and text."""
    said = hashlib.blake2b(f"{note.uid}:{note.reason}:{note.note}".encode(), digest_size=8).hexdigest()
    return f"{note.name[:_POD_LENGTH].rstrip('.-')}.{said}"
