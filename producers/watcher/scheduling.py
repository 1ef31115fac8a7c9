"""The ConfigMap with the scheduler's configuration, as the watcher follows it. No I/O.

What cannot be read changes nothing: pools stay as they were told last, by this process or by one before it.
"""

import logging

import msgspec

from schemas.dialects.text import RequestError
from schemas.kube.core import ObjectMeta
from schemas.kube.defaults import Settings
from schemas.kube.scheduler import Scheduling, read_scheduling

log = logging.getLogger("gpubus.watcher")


class ConfigMap(msgspec.Struct, frozen=True):
    """The part of a ConfigMap that is read."""

    metadata: ObjectMeta
    data: dict[str, str] = {}


class SchedulerConfig:
    """The view of one ConfigMap, in the sense of :class:`bus.kube.reflector.View`.

    Args:
        settings: What follows it. Until it has been read, they do not know how pools schedule.
        origin: Namespace, name and key.

    Attributes:
        namespace: Namespace of the ConfigMap.
        name: Its name.
        problem: Why what it says now is not followed; empty when it is.
    """

    def __init__(self, settings: Settings, origin: tuple[str, str, str]) -> None:
        self.namespace, self.name, self._key = origin
        self.problem = ""
        self._settings = settings
        self._text: str | None = None
        self._there = False
        settings.schedule(None, 0)

    def put(self, item: ConfigMap) -> None:
        """The ConfigMap is so."""
        self._there = True
        text = item.data.get(self._key)
        if text is None:
            self._refuse(f"has no key {self._key}: write the configuration there")
            return
        if text == self._text and not self.problem:
            return  # another key has changed: the version since which it says this stays
        try:
            scheduling = read_scheduling(text)
        except RequestError as error:
            self._refuse(f"{self._key}: {error}")
            return
        self._text, self.problem = text, ""
        _tell(scheduling)
        self._settings.schedule(scheduling, item.metadata.version)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The ConfigMap is no more."""
        del namespace, name, version
        self._there = False
        self._refuse("does not exist")

    def complete(self, version: int) -> None:
        """A list has ended."""
        del version
        if not self._there:
            self._refuse("does not exist")

    def unready(self) -> str:
        """Return why nothing is known of how pools schedule; empty when it is known."""
        return self.problem if self._settings.scheduling is None else ""

    def _refuse(self, problem: str) -> None:
        problem = f"ConfigMap {self.namespace}/{self.name} {problem}"
        if problem != self.problem:
            self.problem = problem
            log.error("%s; pools go on as they are", problem)


def _tell(scheduling: Scheduling) -> None:
    log.info("scheduler configuration followed: %s", msgspec.json.encode(scheduling).decode())
    if scheduling.unfollowed:
        log.warning(
            "arguments of kube-scheduler's own plugins are not followed, pools place by their mode: %s",
            ", ".join(scheduling.unfollowed),
        )
