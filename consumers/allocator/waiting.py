"""Pods that fit nowhere at present, and which of them to try again when something has changed.

They are kept on the bus, so every allocator holds the same set and a crash forgets nobody. When capacity appears, each
allocator works out the same answer and publishes the same command with the same id; the server keeps one.
"""

from collections.abc import Callable, Iterable

from consumers.allocator.choice import Trial
from schemas.pod import GpuRequest, Waiting
from schemas.reasons import QUOTA


class WaitingPods:
    """The waiting pods by UID, each with the STATE sequence of its record."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Waiting, int]] = {}
        self._by_subject: dict[str, str] = {}
        self._woken: set[str] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> tuple[Waiting, int] | None:
        """Return the record of a waiting pod and its sequence."""
        return self._pods.get(uid)

    def put(self, subject: str, pod: Waiting, seq: int) -> None:
        """A pod waits, or waits anew after another try. It replaces an earlier pod of the same name."""
        if self._by_subject.get(subject, pod.uid) != pod.uid:
            self.drop(subject)
        self._pods[pod.uid] = (pod, seq)
        self._by_subject[subject] = pod.uid
        self._woken.discard(pod.uid)

    def drop(self, subject: str) -> None:
        """The pod of this subject waits no more."""
        uid = self._by_subject.pop(subject, None)
        if uid is not None:
            self._pods.pop(uid, None)
            self._woken.discard(uid)

    def forget_wakes(self) -> None:
        """Let every pod be woken again: the slow sweep that catches what events missed."""
        self._woken.clear()

    def all(self) -> list[str]:
        """Return the UIDs of all waiting pods."""
        return list(self._pods)

    def for_quota(self, namespace: str) -> list[str]:
        """Return the pods of a namespace that its quota refused."""
        return [uid for uid, (pod, _) in self._pods.items() if pod.namespace == namespace and pod.reason == QUOTA]

    def wake(
        self,
        trial: Trial,
        *,
        grown: Iterable[str],
        recheck: Iterable[str],
        busy: Callable[[str], bool],
    ) -> list[tuple[Waiting, int]]:
        """Return the pods worth trying again, higher priority first, then longest waiting.

        Args:
            trial: Tries pods against the present state, and restores it.
            grown: Nodes that gained capacity.
            recheck: Pods to try whatever grew.
            busy: Whether a pod is being placed right now.

        Places are taken as pods are woken, so one free GPU wakes one pod and not a herd. Pods to be tried that are woken
        already and on their way take theirs first.
        """
        shapes: dict[tuple[GpuRequest, str], bool] = {}
        nodes, tried = tuple(grown), set(recheck)
        among = self._pods if nodes else [uid for uid in recheck if uid in self._pods]
        order = sorted(
            (self._pods[uid] for uid in among if (uid not in self._woken or uid in tried) and not busy(uid)),
            key=lambda e: (e[0].uid not in self._woken, -e[0].request.priority, e[0].since, e[0].uid),
        )
        woken: list[tuple[Waiting, int]] = []
        with trial:
            for pod, seq in order:
                shape = (pod.request, trial.account(pod))
                if pod.uid not in tried:
                    if shape not in shapes:
                        shapes[shape] = any(trial.fits_on(pod, node) for node in nodes)
                    if not shapes[shape]:
                        continue
                if not trial.place(pod):
                    shapes[shape] = False
                    continue
                if pod.uid not in self._woken:
                    self._woken.add(pod.uid)
                    woken.append((pod, seq))
        return woken
