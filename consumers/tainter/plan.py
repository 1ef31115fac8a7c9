"""What a node says of whether pods hold GPUs of ours there. Pure.

Source of the taint: TensorFusion's GPUNode controller. Releases before had it with ``NoSchedule``, which kept everybody off, and
which is taken away. The label is ours: admission has native pods keep to nodes without it.
"""

from typing import Any, Final

from schemas.kube.occupied import LABEL, TAINT

_OURS: Final = (TAINT["key"], TAINT["value"])


def patch_of(node: dict[str, Any], *, occupied: bool) -> dict[str, Any] | None:
    """Return the merge patch for a node as the API server has it; None if it says what it should.

    Args:
        node: The node, in JSON.
        occupied: Whether pods hold GPUs of ours there.
    """
    meta = node["metadata"]
    taints = node.get("spec", {}).get("taints") or []
    others = [one for one in taints if (one.get("key"), one.get("value")) != _OURS]
    ours = next(
        (one for one in taints if occupied and one not in others and one.get("effect") == TAINT["effect"]), None
    )
    wanted = [*others, ours or dict(TAINT)] if occupied else others
    labelled = meta.get("labels", {}).get(LABEL)
    if len(wanted) == len(taints) and (ours is not None or not occupied) and labelled == ("true" if occupied else None):
        return None
    return {
        # Taints are replaced as a whole: whoever has changed them meanwhile must not be undone.
        "metadata": {"resourceVersion": meta["resourceVersion"], "labels": {LABEL: "true" if occupied else None}},
        "spec": {"taints": wanted or None},
    }
