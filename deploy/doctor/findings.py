"""What a check has found: how bad it is, and the line that mends it."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Severity = Literal["ok", "unknown", "warning", "critical"]
ORDER: Final[tuple[Severity, ...]] = ("ok", "unknown", "warning", "critical")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        check: What was looked at, such as ``bus/streams``.
        severity: ``unknown`` where it could not be told, ``critical`` where pods wait or data is at risk.
        says: What was found, in one sentence.
        fix: What to do; empty where nothing is to be done.
    """

    check: str
    severity: Severity
    says: str
    fix: str = ""


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity of all."""
    return max((finding.severity for finding in findings), key=ORDER.index, default="ok")


def good(check: str, says: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check=check, severity="ok", says=says)
