"""Who takes what of a node: pods that have one and are not in the ledger, which counts its own. No I/O."""

from producers.watcher.nodes import Nodes, Seat
from schemas.dialects import RequestError
from schemas.kube.annotations import claimed_gpus
from schemas.kube.core import KubePod
from schemas.kube.views import amounts_of

Key = tuple[str, ...]
"""Namespace and name of a pod."""


class Seats:
    """Seats of pods on ``nodes``. A pod of ours takes one as long as the ledger does not hold it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._holders: dict[str, frozenset[str]] = {}
        self._held: dict[str, str] = {}
        self._placed: dict[str, tuple[Key, Seat, int]] = {}
        self._uids: dict[Key, str] = {}

    def sit(self, key: Key, item: KubePod, *, ours: bool) -> None:
        """Count a pod that has a node against that node, with the GPUs that it claims."""
        meta = item.metadata
        self._leave(key)
        if not item.spec.node_name or item.ended:
            self._nodes.seat(key, None, meta.version)
            return
        try:
            cpu, memory = amounts_of(item)
        except RequestError:
            cpu = memory = 0
        seat = Seat(item.spec.node_name, cpu, memory, claimed_gpus(meta.annotations))
        if ours:
            self._uids[key] = meta.uid
            self._placed[meta.uid] = (key, seat, meta.version)
        self._nodes.seat(key, None if ours and meta.uid in self._held else seat, meta.version)

    def gone(self, key: Key, version: int) -> None:
        """There is no pod of that name."""
        self._leave(key)
        self._nodes.seat(key, None, version)

    def _leave(self, key: Key) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._placed.pop(uid, None)

    def holders(self, node: str, uids: frozenset[str]) -> None:
        """The ledger says which pods hold something on a node."""
        before = self._holders.get(node, frozenset())
        self._holders[node] = uids
        for uid in before - uids:
            if self._held.get(uid) == node:
                del self._held[uid]
        self._held |= dict.fromkeys(uids, node)
        for uid in before ^ uids:
            if uid in self._placed:
                key, seat, version = self._placed[uid]
                self._nodes.seat(key, None if uid in self._held else seat, version)
