"""Go durations, such as ``30s`` or ``1h30m``, and the days that GreptimeDB adds to them."""

import re
from typing import Final

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def seconds(text: str, *, days: bool = False) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: It is no such duration.
    """
    total, at = 0.0, 0
    while match := _PART.match(text, at):
        if match[2] == "d" and not days:
            break
        total += float(match[1]) * _UNIT_S[match[2]]
        at = match.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is no duration: write one such as 30s, 2m or 1h30m{' or 30d' if days else ''}")
    return total
