"""Alerts as Alertmanager takes them: ``POST /api/v2/alerts``.

Source: Alertmanager API v2, ``postableAlerts``.
"""

from datetime import datetime
from typing import Any

from schemas.alert import Alert, AlertNotice


def payload(notice: AlertNotice) -> list[dict[str, Any]]:
    """Return everything that is told.

    An alert whose time has passed is told too: Alertmanager takes it for over and wakes nobody. By the clock of this machine,
    should it be wrong, no firing alert might ever be told.
    """
    return [_alert(alert) for alert in notice.alerts]


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "labels": alert.labels,
        "annotations": {name: text for name, text in alert.annotations.items() if text},
        "startsAt": _instant(alert.starts_at),
        "endsAt": _instant(alert.ends_at),
    }


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
