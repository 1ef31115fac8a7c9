"""Pods that fit nowhere at present, and which of them to try again when something has changed.

They are kept on the bus, so every allocator holds the same set and a crash forgets nobody. When capacity appears, each
allocator works out the same answer and publishes the same command with the same id; the server keeps one.
"""

from collections.abc import Callable, Iterable

from consumers.allocator.engine import Policy, Snapshot, decide, fits_on
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Waiting


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

    def wake(
        self,
        snapshot: Snapshot,
        policy_of: Callable[[str], Policy],
        *,
        grown: Iterable[str],
        recheck: Iterable[str],
        busy: Callable[[str], bool],
    ) -> list[tuple[Waiting, int]]:
        """Return the pods worth trying again, higher priority first, then longest waiting.

        Args:
            snapshot: Present state; changed while this runs and restored before it returns.
            policy_of: Policy of a pool.
            grown: Nodes that gained capacity.
            recheck: Pods to try whatever grew.
            busy: Whether a pod is being placed right now.

        Places are taken off the snapshot as pods are woken, so one free GPU wakes one pod and not a herd.
        """
        shapes: dict[GpuRequest, bool] = {}
        nodes, tried = tuple(grown), set(recheck)
        among = self._pods if nodes else [uid for uid in recheck if uid in self._pods]
        order = sorted(
            (self._pods[uid] for uid in among if uid not in self._woken and not busy(uid)),
            key=lambda entry: (-entry[0].request.priority, entry[0].since, entry[0].uid),
        )
        woken: list[tuple[Waiting, int]] = []
        taken: list[tuple[str, str]] = []
        for pod, seq in order:
            request = pod.request
            if pod.uid not in tried:
                if request not in shapes:
                    shapes[request] = any(fits_on(snapshot, request, node, policy_of(request.pool)) for node in nodes)
                if not shapes[request]:
                    continue
            decision = decide(snapshot, request, policy_of(request.pool))
            if not decision.node:
                shapes[request] = False
                continue
            snapshot.add(decision.node, _reservation(pod, decision.gpus))
            taken.append((decision.node, pod.uid))
            self._woken.add(pod.uid)
            woken.append((pod, seq))
        for node, uid in reversed(taken):
            snapshot.remove(node, uid)
        return woken


def _reservation(pod: Waiting, gpus: tuple) -> Allocation:  # type: ignore[type-arg]
    return Allocation(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        pool=pod.request.pool,
        gpus=gpus,
        cpu_milli=pod.request.cpu_milli,
        memory_bytes=pod.request.memory_bytes,
    )
