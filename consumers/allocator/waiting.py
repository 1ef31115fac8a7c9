"""Pods that fit nowhere at present, and which of them to try again when something has changed.

They are kept on the bus, so every allocator holds the same set and a crash forgets nobody. When capacity appears, each
allocator works out the same answer and publishes the same command with the same id; the server keeps one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from consumers.allocator.choice import Trial
from consumers.allocator.engine.ranks import Rank, rank_of
from schemas.pod import GpuRequest, Waiting
from schemas.reasons import QUOTA
from schemas.requirements import Gang

AHEAD_S: Final = 600.0
"""A pod goes before those of the next lower rank among the waiting that came up to so long before it, and after those that came
earlier: whoever waits gets its turn, however many of higher rank keep coming.
"""

ENDED: Final = 65_536
"""Pods that ended while they waited and are remembered."""


class WaitingPods:
    """The waiting pods by UID, each with the STATE sequence of its record."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Waiting, int]] = {}
        self._by_subject: dict[str, str] = {}
        self._by_gang: dict[str, dict[str, None]] = {}
        self._woken: set[str] = set()
        self._ended: dict[str, None] = {}
        self._ranks: Counter[Rank] = Counter()
        self._steps: dict[Rank, int] | None = None

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> tuple[Waiting, int] | None:
        """Return the record of a waiting pod and its sequence."""
        return self._pods.get(uid)

    def put(self, subject: str, pod: Waiting, seq: int) -> None:
        """A pod waits, or waits anew after another try. It replaces an earlier pod of the same name."""
        if self._by_subject.get(subject, pod.uid) != pod.uid:
            self.drop(subject)
        if (before := self._pods.get(pod.uid)) is not None:
            self._count(before[0], -1)
        self._count(pod, 1)
        self._pods[pod.uid] = (pod, seq)
        self._by_subject[subject] = pod.uid
        self._woken.discard(pod.uid)
        if pod.request.gang is not None:
            self._by_gang.setdefault(pod.request.gang.key, {})[pod.uid] = None

    def drop(self, subject: str) -> None:
        """The pod of this subject waits no more."""
        uid = self._by_subject.pop(subject, None)
        if uid is not None:
            entry = self._pods.pop(uid, None)
            self._woken.discard(uid)
            if entry is not None:
                self._count(entry[0], -1)
            if entry is not None and (gang := entry[0].request.gang) is not None:
                members = self._by_gang[gang.key]
                del members[uid]
                if not members:
                    del self._by_gang[gang.key]

    def end(self, uid: str) -> None:
        """A waiting pod ended. Its record may be written once more by an allocator that was about to refuse it again."""
        self._ended[uid] = None
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]

    def ended(self, uid: str) -> bool:
        """Whether the pod ended while it waited."""
        return uid in self._ended

    def forget_wakes(self) -> None:
        """Let every pod be woken again: the slow sweep that catches what events missed."""
        self._woken.clear()

    def all(self) -> list[str]:
        """Return the UIDs of all waiting pods."""
        return list(self._pods)

    def for_quota(self, namespace: str) -> list[str]:
        """Return the pods of a namespace that its quota refused."""
        return [uid for uid, (pod, _) in self._pods.items() if pod.namespace == namespace and pod.reason == QUOTA]

    def of_gang(self, key: str) -> list[tuple[Waiting, int]]:
        """Return the waiting members of a gang in their order."""
        return sorted((self._pods[uid] for uid in self._by_gang.get(key, ())), key=self._turn)

    def gangs(self) -> Iterator[tuple[Gang, datetime]]:
        """Yield the gangs of which members wait, with the time since which the first of them does."""
        for members in self._by_gang.values():
            pods = [self._pods[uid][0] for uid in members]
            if (gang := pods[0].request.gang) is not None:
                yield gang, min(pod.since for pod in pods)

    def in_order(self) -> list[tuple[Waiting, int]]:
        """Return all waiting pods, those first whose turn it is."""
        return sorted(self._pods.values(), key=self._turn)

    def _turn(self, entry: tuple[Waiting, int]) -> tuple[float, str]:
        pod, _ = entry
        return pod.since.timestamp() - AHEAD_S * self._step(rank_of(pod.request)), pod.uid

    def _step(self, rank: Rank) -> int:
        if self._steps is None:
            self._steps = {rank: step for step, rank in enumerate(sorted(self._ranks))}
        return self._steps[rank]

    def _count(self, pod: Waiting, more: int) -> None:
        rank = rank_of(pod.request)
        before = self._ranks[rank]
        self._ranks[rank] = before + more
        if not self._ranks[rank]:
            del self._ranks[rank]
        if before == 0 or before + more == 0:
            self._steps = None

    def wake(
        self,
        trial: Trial,
        *,
        grown: Iterable[str],
        recheck: Iterable[str],
        busy: Callable[[str], bool],
        retell: bool = False,
    ) -> list[tuple[Waiting, int]]:
        """Return the pods worth trying again, in their order: see :data:`AHEAD_S`.

        Args:
            trial: Tries pods against the present state, and restores it.
            grown: Nodes that gained capacity.
            recheck: Pods to try whatever grew.
            busy: Whether a pod is being placed right now.
            retell: Wake those too that their quota refused and allows by now, though they fit nowhere: to be told the reason.

        Places are taken as pods are woken, so one free GPU wakes one pod and not a herd. Pods to be tried that are woken
        already and on their way take theirs first.
        """
        shapes: dict[tuple[GpuRequest, str, str], bool] = {}
        nodes, tried = tuple(grown), set(recheck)
        among = self._pods if nodes else [uid for uid in recheck if uid in self._pods]
        order = sorted(
            (self._pods[uid] for uid in among if (uid not in self._woken or uid in tried) and not busy(uid)),
            key=lambda entry: (entry[0].uid not in self._woken, *self._turn(entry)),
        )
        woken: list[tuple[Waiting, int]] = []
        with trial:
            for pod, seq in order:
                if trial.must_form(pod):
                    if pod.uid in tried or any(trial.fits_on(pod, node) for node in nodes):
                        woken += self._wake_gang(trial, pod, busy)
                    continue
                shape = (pod.request, trial.account(pod), pod.uid if trial.keeps_room(pod) else "")
                if pod.uid not in tried:
                    if shape not in shapes:
                        shapes[shape] = any(trial.fits_on(pod, node) for node in nodes)
                    if not shapes[shape]:
                        continue
                if not trial.place(pod):
                    shapes[shape] = False
                    if not (retell and pod.reason == QUOTA and trial.allows(pod)):
                        continue
                if pod.uid not in self._woken:
                    self._woken.add(pod.uid)
                    woken.append((pod, seq))
        return woken

    def _wake_gang(self, trial: Trial, pod: Waiting, busy: Callable[[str], bool]) -> list[tuple[Waiting, int]]:
        """Wake the first member of a gang if enough of them fit at once: whoever takes its command places them all."""
        gang = pod.request.gang
        members = self.of_gang(gang.key) if gang is not None else []
        if gang is None or not self._may_wake(members, gang.min_members, busy):
            return []
        if not trial.form([member for member, _ in members], gang.min_members):
            return []
        self._woken.add(members[0][0].uid)
        return members[:1]

    def _may_wake(self, members: list[tuple[Waiting, int]], least: int, busy: Callable[[str], bool]) -> bool:
        """Whether enough members are there, none of them is on its way, and the first is not woken yet."""
        return (
            len(members) >= least
            and members[0][0].uid not in self._woken
            and not any(busy(pod.uid) for pod, _ in members)
        )

    def lead(self, key: str, busy: Callable[[str], bool]) -> list[tuple[Waiting, int]]:
        """Wake the first member of a gang of which enough are there, whether or not they fit."""
        members = self.of_gang(key)
        gang = members[0][0].request.gang if members else None
        if gang is None or not self._may_wake(members, gang.min_members, busy):
            return []
        self._woken.add(members[0][0].uid)
        return members[:1]
