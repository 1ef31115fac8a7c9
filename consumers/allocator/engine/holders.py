"""Which pod holds something on which node: a pod belongs on one, but the engine must be able to say when it is on two."""


class Holders:
    """Nodes by pod UID, in name order, so that no answer depends on which node's event came first."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[str, ...]] = {}

    def add(self, pod_uid: str, node: str) -> None:
        """Note that a pod holds something on a node where it held nothing."""
        others = self._nodes.get(pod_uid)
        self._nodes[pod_uid] = (node,) if others is None else tuple(sorted((*others, node)))

    def remove(self, pod_uid: str, node: str) -> None:
        """Note that a pod holds nothing on a node any more."""
        left = tuple(holder for holder in self._nodes[pod_uid] if holder != node)
        if left:
            self._nodes[pod_uid] = left
        else:
            del self._nodes[pod_uid]

    def first(self, pod_uid: str) -> str | None:
        """Return the first node by name on which the pod holds something."""
        nodes = self._nodes.get(pod_uid)
        return nodes[0] if nodes else None

    def all(self, pod_uid: str) -> tuple[str, ...]:
        """Return all nodes on which the pod holds something, by name."""
        return self._nodes.get(pod_uid, ())

    def duplicates(self) -> dict[str, tuple[str, ...]]:
        """Return the pods that hold something on more than one node, in order of UID, with those nodes."""
        return {uid: nodes for uid, nodes in sorted(self._nodes.items()) if len(nodes) > 1}
