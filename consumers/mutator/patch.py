"""The JSON patch that turns one object into another. Source: RFC 6902."""

from collections.abc import Iterator
from typing import Any

from schemas.admission import PatchOperation


def diff(before: Any, after: Any, path: str = "") -> Iterator[PatchOperation]:
    """Yield the operations that turn ``before`` into ``after``; none when they are equal.

    Lists of equal length are compared member by member, others are replaced as a whole: who injects a container appends
    it, and an index in the middle would say less than the list.
    """
    if before == after and type(before) is type(after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield PatchOperation("remove", f"{path}/{_escaped(key)}")
        for key, value in after.items():
            where = f"{path}/{_escaped(key)}"
            if key in before:
                yield from diff(before[key], value, where)
            else:
                yield PatchOperation("add", where, value)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from diff(old, new, f"{path}/{index}")
    else:
        yield PatchOperation("replace", path, after)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
