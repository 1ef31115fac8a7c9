"""What has changed between two moments: nodes, allocations, who waits, and the totals. Pure."""

from collections.abc import Iterable
from typing import Any

_TOTALS = ("granted_tflops_milli", "granted_vram_bytes", "schedulable_tflops_milli", "schedulable_vram_bytes", "pods")


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what is different in the second of two reports of :mod:`deploy.cli.report`.

    A pod is known by its UID: one that was made anew under the same name left and came.
    """
    old_pods, new_pods = _pods(before), _pods(after)
    old_nodes, new_nodes = ({node["name"]: node for node in found["nodes"]} for found in (before, after))
    old_waiting, new_waiting = ({pod["uid"]: pod for pod in found["waiting"]} for found in (before, after))
    both = sorted(old_nodes.keys() & new_nodes.keys())
    return {
        "from": before["sequences"],
        "to": after["sequences"],
        "cluster": {
            field: {"from": before["cluster"][field], "to": after["cluster"][field]} for field in (*_TOTALS, "waiting")
        },
        "nodes_gone": sorted(old_nodes.keys() - new_nodes.keys()),
        "nodes_new": sorted(new_nodes.keys() - old_nodes.keys()),
        "nodes_changed": [
            {"name": name, "from": old_nodes[name]["status"], "to": new_nodes[name]["status"]}
            for name in both
            if old_nodes[name]["status"] != new_nodes[name]["status"]
        ],
        "gpus_changed": [change for name in both for change in _gpus(old_nodes[name], new_nodes[name])],
        "placed": _listed(new_pods[uid] for uid in new_pods.keys() - old_pods.keys()),
        "gone": _listed(old_pods[uid] for uid in old_pods.keys() - new_pods.keys()),
        "moved": _listed(
            {**new_pods[uid], "from": old_pods[uid]["node"]}
            for uid in new_pods.keys() & old_pods.keys()
            if _place(new_pods[uid]) != _place(old_pods[uid])
        ),
        "began_to_wait": _listed(new_waiting[uid] for uid in new_waiting.keys() - old_waiting.keys()),
        "wait_no_more": _listed(old_waiting[uid] for uid in old_waiting.keys() - new_waiting.keys()),
    }


def _pods(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the allocations by UID, those on unknown nodes included. Of a pod that stands twice, the first came first."""
    held = sorted((pod for node in found["nodes"] for pod in node["pods"]), key=lambda pod: -pod["since"])
    return {pod["pod_uid"]: pod for pod in (*held, *found["unplaced"])}


def _place(pod: dict[str, Any]) -> tuple[Any, ...]:
    return pod["node"], pod.get("gpus", ())


def _gpus(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    old, new = ({gpu["uuid"]: gpu["status"] for gpu in node["gpus"]} for node in (before, after))
    return [
        {"node": after["name"], "uuid": uuid, "from": old.get(uuid, "absent"), "to": new.get(uuid, "absent")}
        for uuid in sorted(old.keys() | new.keys())
        if old.get(uuid) != new.get(uuid)
    ]


def _listed(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (entry["namespace"], entry["name"]))
