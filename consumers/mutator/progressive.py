"""``nvidiaOperatorProgressiveMigration``: pods of the native device plugin beside ours, on nodes of their own. Pure.

Source: TensorFusion, chart ``controller.nvidiaOperatorProgressiveMigration``. There such pods go to its own scheduler; here they
stay with theirs, which knows what the device plugin has left, and keep to nodes on which pods hold no GPU of ours.
"""

from typing import Any, Final

from schemas.kube.occupied import LABEL

_APART: Final = {"key": LABEL, "operator": "DoesNotExist"}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def apart(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's ``spec`` that keeps to nodes without GPUs of ours; it is shared with the old one where nothing changes."""
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    # Terms are alternatives: each has to say it. One that says nothing matches no node, and is to stay so.
    kept = [_with(term) for term in terms] if terms is not None else [{"matchExpressions": [_APART]}]
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": kept}}}}


def _with(term: dict[str, Any]) -> dict[str, Any]:
    stated = term.get("matchExpressions") or []
    if _APART in stated or not (stated or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*stated, _APART]}
