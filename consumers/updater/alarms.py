"""Which alerts fire for which pool: a fold of the alerter's rule states and of what belongs to whom. No I/O.

An alert names what it is about by its ``instance``: a pool, a node, or a GPU.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from bus.codec import decode_as
from bus.follower import Record
from bus.subjects import names
from consumers.updater.verdict import Firing
from schemas.event import Timestamp

FILTERS: Final = ("gpubus.state.alert.*", "gpubus.state.node.*", "gpubus.state.gpu.*")


class _Streak(msgspec.Struct, frozen=True):
    labels: dict[str, str]
    since: Timestamp
    firing: bool = False


class _Rule(msgspec.Struct, frozen=True):
    rule: str
    streaks: tuple[_Streak, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    pool: str = ""


class _Gpu(msgspec.Struct, frozen=True):
    uuid: str


class _Gpus(msgspec.Struct, frozen=True):
    gpus: tuple[_Gpu, ...]


class Alarms:
    """Firing alerts, and the pools of nodes and GPUs. Only the few fields that say so are decoded."""

    def __init__(self) -> None:
        self._pools: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}
        self._rules: dict[str, tuple[_Streak, ...]] = {}

    def apply(self, record: Record) -> bool:
        """Apply one record of STATE and return whether alerts may have changed.

        Raises:
            UndecodableError: It cannot be read. What it said before holds.
        """
        _, kind, name = names(record.subject)
        match kind:
            case "alert":
                streaks = () if record.deleted else decode_as(_Rule, record.payload).data.streaks
                firing = tuple(streak for streak in streaks if streak.firing)
                changed = self._rules.get(name, ()) != firing
                self._rules[name] = firing
                return changed
            case "node":
                self._pools[name] = "" if record.deleted else decode_as(_Node, record.payload).data.pool
            case _:
                gpus = () if record.deleted else decode_as(_Gpus, record.payload).data.gpus
                for uuid in self._gpus.pop(name, ()):
                    self._nodes.pop(uuid, None)
                self._gpus[name] = tuple(gpu.uuid for gpu in gpus)
                self._nodes |= dict.fromkeys(self._gpus[name], name)
        return False

    def firing(self, pool: str) -> tuple[Firing, ...]:
        """Return the alerts that fire for a pool, its nodes and their GPUs."""
        return tuple(self._firing(pool))

    def _firing(self, pool: str) -> Iterable[Firing]:
        for rule, streaks in sorted(self._rules.items()):
            for streak in streaks:
                instance = streak.labels.get("instance", "")
                node = self._nodes.get(instance, instance)
                if pool in (instance, self._pools.get(node)):
                    yield Firing(name=f"{rule} on {instance}", since=streak.since)
