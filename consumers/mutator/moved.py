"""Takes GPU resources out of containers, so that no device plugin has to grant them; see :mod:`schemas.dialects.moved`."""

from typing import Any, Final

from schemas.dialects.moved import MOVED, Moved, encode, read

_LISTS: Final = ("initContainers", "containers")
_PARTS: Final = ("requests", "limits")
"""In this order: where both have one, the limit counts."""


def move(pod: dict[str, Any], names: frozenset[str], extra: Moved) -> None:
    """Move resources called ``names`` from all containers of a pod into its annotation.

    Args:
        pod: A pod as JSON, changed in place.
        names: Resources.
        extra: Amounts that defaults add to what was written, by container.

    Raises:
        RequestError: The pod has the annotation already and it is not what we write.
    """
    meta = pod["metadata"]
    moved = {name: dict(held) for name, held in read(meta.get("annotations") or {}).items()}
    for container in (one for kind in _LISTS for one in pod["spec"].get(kind) or ()):
        resources = container.get("resources") or {}
        for part in _PARTS:
            amounts = resources.get(part) or {}
            for name in names & amounts.keys():
                moved.setdefault(container["name"], {})[name] = str(amounts.pop(name))
            if part in resources and not amounts:
                del resources[part]
    for name, held in extra.items():
        moved.setdefault(name, {}).update(held)
    if moved:
        meta["annotations"] = {**(meta.get("annotations") or {}), MOVED: encode(moved)}
