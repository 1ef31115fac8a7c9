"""Pods of ours as the API server has them, and what is to be said and done about each. No I/O.

One that has its node is held only until that has been told: what STATE holds of it is enough to tell its end.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from producers.watcher.digests import pod_digest
from producers.watcher.plan import About, Key, Known, Outgoing, Stored, commands, known, refusal, release
from producers.watcher.reading import Reader, Refusal, project
from producers.watcher.told import Told, gone, here
from schemas.kube.core import KubePod


class Pods:
    """Pods by namespace and name; ``changed`` is called with the key of one that has to be told anew."""

    def __init__(self, reader: Reader, changed: Callable[[Key], None]) -> None:
        self._reader = reader
        self._changed = changed
        self._latest = 0  # up to here the view is complete: lists do not come in the order of versions
        self._asking: dict[Key, KubePod] = {}
        self._bound: dict[Key, KubePod] = {}
        self._gone: dict[Key, int] = {}
        self._unsaid: dict[Key, dict[str, Known]] = {}
        """Pods that were told to the allocators, by name and UID, of which STATE did not take our word."""
        self.there: set[Key] = set()
        """Pods of ours that exist."""
        self._refused: dict[Key, tuple[str, Refusal]] = {}

    @property
    def refused(self) -> int:
        """Number of pods that cannot be placed as they are written."""
        return len(self._refused)

    @property
    def asking(self) -> Iterable[Key]:
        """Pods that have no node yet."""
        return self._asking

    def put(self, key: Key, item: KubePod) -> None:
        """A pod of ours is so."""
        self._gone.pop(key, None)
        self.there.add(key)
        if item.spec.node_name or item.ended:
            self._asking.pop(key, None)
            self._bound[key] = item
        else:
            self._asking[key] = item
            self._bound.pop(key, None)
        self._changed(key)

    def foreign(self, key: Key, version: int) -> None:
        """A pod of that name is none of ours; if one of ours had it before, it was deleted."""
        self._gone.pop(key, None)
        if key in self.there:
            self._forget(key, version)

    def gone(self, key: Key, version: int) -> None:
        """There is no pod of that name."""
        self.complete(version)
        self._forget(key, version)

    def complete(self, version: int) -> None:
        """Everything that existed at ``version`` has been told."""
        self._latest = max(self._latest, version)

    def _forget(self, key: Key, version: int) -> None:
        self.there.discard(key)
        self._asking.pop(key, None)
        self._bound.pop(key, None)
        self._refused.pop(key, None)
        self._gone[key] = version
        self._changed(key)

    # What to say

    def tell(self, subject: str, key: Key, stored: Stored | None, at: datetime, seq: int) -> Told | None:
        """Return what is to be said about a pod; None if STATE says it already, or something newer."""
        item = self._bound.get(key) or self._asking.get(key)
        if item is None:
            if key in self.there:
                return None  # it has its node, and that was told before
            return self._departed(About(subject, key, "", self._gone.get(key, self._latest), at), stored, [])
        if item.spec.scheduling_gates:
            return None
        return self._standing(About(subject, key, item.metadata.uid, item.metadata.version, at), item, stored, seq)

    def _standing(self, about: About, item: KubePod, stored: Stored | None, seq: int) -> Told | None:
        """There is such a pod: it is ours as far as what it asks for can be read."""
        key, uid = about.key, about.uid
        asked = self._reader.read(item)
        if isinstance(asked, Refusal):
            if item.spec.node_name or item.ended:
                # It has its node. What it holds it keeps until it ends, however it is written.
                return self._unreadable(about, item, stored)
            news = self._refused.get(key) != (uid, asked)
            self._refused[key] = (uid, asked)
            return self._departed(about, stored, [refusal(key, uid, asked, about.at, seq)] if news else [])
        self._refused.pop(key, None)
        pod = project(item, asked.request)
        now, content = known(pod, asked.digest), pod_digest(pod, asked.digest)
        said = commands(about, stored, pod, now)
        newer = stored is not None and stored.version > about.version
        if newer or (stored is not None and stored.digest == content and not said):
            return None
        return here(about, pod, content, said, now)

    def _departed(self, about: About, stored: Stored | None, first: list[Outgoing]) -> Told | None:
        """No pod of ours stands under this name as far as STATE is concerned."""
        if stored is not None and stored.version > about.version:
            return None  # another replica knows better, and has given the commands
        return gone(about, stored, first + commands(about, stored, None, None))

    def _unreadable(self, about: About, item: KubePod, stored: Stored | None) -> Told | None:
        same = stored is not None and stored.pod is not None and stored.pod.uid == item.metadata.uid
        if same and not item.ended:
            return None
        said = commands(about, stored, None, None)
        if item.ended and not same:
            unknown = Known(item.metadata.uid, "", item.spec.node_name, ended=True, asks=b"")
            said.append(release(about.key, unknown, item.status.phase, str(about.version), about.at))
        if stored is not None and stored.version > about.version:
            return None
        return gone(about, stored, said)

    def done(self, key: Key, version: int) -> None:
        """STATE says of a pod what it was at ``version``, or something newer: forget what is needed no more."""
        item = self._bound.get(key)
        if item is not None and item.metadata.version <= version:
            del self._bound[key]
        if self._gone.get(key, version + 1) <= version:
            del self._gone[key]

    def again(self, key: Key, told: Told) -> None:
        """What was to be said of a pod could not be; its commands were given."""
        if told.stored is not None and told.stored.pod is not None:
            self._unsaid.setdefault(key, {})[told.stored.pod.uid] = told.stored.pod

    def owed(self, key: Key, stored: Stored | None, at: datetime) -> list[Outgoing]:
        """Return releases of pods that were scheduled under this name and that nobody else can know of any more."""
        if key not in self._unsaid:
            return []
        item = self._bound.get(key) or self._asking.get(key)
        if stored is not None and stored.pod is not None:
            self._unsaid[key].pop(stored.pod.uid, None)  # whoever departs from that record gives the command
        if item is None and key in self.there and stored is None:
            return []  # it is there, unreadable, and may be any of them
        left = self._unsaid.pop(key)
        over = {uid: pod for uid, pod in left.items() if item is None or item.metadata.uid != uid}
        if left.keys() - over.keys():
            self._unsaid[key] = {uid: pod for uid, pod in left.items() if uid not in over}
        return [release(key, pod, "Deleted", "overtaken", at) for pod in over.values() if not pod.ended]
