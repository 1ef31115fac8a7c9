"""Nodes that we close to pods, and open again, by a taint and a label of our own: an operator's cordon stays the operator's.

A node that somebody cordons while we have it closed stays cordoned when we open it; whose taint it is nobody has to remember.
"""

from typing import Any, Final

import msgspec

from bus.kube.client import MERGE, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from schemas.cluster import Node
from schemas.kube.core import ObjectMeta

TRIES: Final = 5
"""How often a node that others change at the same time is read and written."""


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] = []


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_node = msgspec.json.Decoder(_Node)


def is_closed(node: Node, label: str) -> bool:
    """Return whether we have closed a node for what ``label`` says."""
    return any(taint.key == label for taint in node.taints)


async def close_node(client: Client, node: str, label: str, *, closed: bool) -> None:
    """Close a node to pods and label it with why, or take both back; one that is gone is left alone.

    Raises:
        KubeError: The API server did not take it.
    """
    path = resource_path("v1", "nodes", "", node)
    for left in reversed(range(TRIES)):
        try:
            found = _node.decode(await client.call("GET", path))
            patch = _patch(found, label, closed=closed)
            if patch is not None:
                await client.call("PATCH", path, body=msgspec.json.encode(patch), content_type=MERGE)
        except KubeRefusedError as error:
            if error.code == NOT_FOUND:
                return
            if error.code != CONFLICT or not left:
                raise
        else:
            return


def _patch(found: _Node, label: str, *, closed: bool) -> dict[str, Any] | None:
    """Return what makes a node so, on the condition that it is as it was read; None if it is so."""
    others = [taint for taint in found.spec.taints if taint.get("key") != label]
    mine = [{"key": label, "value": "true", "effect": "NoSchedule"}] if closed else []
    labelled = found.metadata.labels.get(label)
    if len(others) + len(mine) == len(found.spec.taints) and labelled == ("true" if closed else None):
        return None
    return {
        "metadata": {
            "resourceVersion": found.metadata.resource_version,
            "labels": {label: "true" if closed else None},
        },
        "spec": {"taints": others + mine},
    }
