"""Patches of pods and their parts, merged as Kubernetes merges them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

_MERGED_BY: Final = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "imagePullSecrets": "name",
    "volumeMounts": "mountPath", "ports": "containerPort",
}  # fmt: skip
"""Lists of which an entry is changed and not the whole list replaced. Source: the merge keys of Kubernetes' pod specification."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with what ``patch`` says; a null takes away. Neither is touched."""
    merged = dict(base)
    for key, value in patch.items():
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = merge(before, value)
        elif isinstance(value, list) and isinstance(before, list) and key in _MERGED_BY:
            merged[key] = _merge_list(before, value, _MERGED_BY[key])
        else:
            merged[key] = value
    return merged


def _merge_list(base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    changes = {entry.get(key): entry for entry in patch}
    kept = [merge(entry, changes.pop(entry.get(key), {})) for entry in base]
    return [*kept, *changes.values()]
