"""The JSON patch that turns one object into another. Source: RFC 6902."""

from typing import Any

from schemas.admission import PatchOperation


def diff(before: Any, after: Any) -> tuple[PatchOperation, ...]:
    """Return the operations that turn ``before`` into ``after``; none when they are equal.

    Lists of equal length are compared member by member, others are replaced as a whole: who injects a container appends
    it, and an index in the middle would say less than the list.
    """
    found: list[PatchOperation] = []
    if not _same(before, after):
        _compare(before, after, "", found)
    return tuple(found)


def _compare(before: Any, after: Any, path: str, found: list[PatchOperation]) -> None:
    """Compare two that are not the same. Equal parts are told apart by one comparison in C, however large they are."""
    if isinstance(before, dict) and isinstance(after, dict):
        found += [PatchOperation("remove", f"{path}/{_escaped(key)}") for key in before if key not in after]
        for key, value in after.items():
            if key not in before:
                found.append(PatchOperation("add", f"{path}/{_escaped(key)}", value))
            elif not _same(before[key], value):
                _compare(before[key], value, f"{path}/{_escaped(key)}", found)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if not _same(old, new):
                _compare(old, new, f"{path}/{index}", found)
    else:
        found.append(PatchOperation("replace", path, after))


def _same(before: Any, after: Any) -> bool:
    return before == after and type(before) is type(after)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
