"""Alerts as Alertmanager takes them: ``POST /api/v2/alerts``.

Source: Alertmanager API v2, ``postableAlerts``.
"""

from datetime import datetime
from typing import Any

from schemas.alert import Alert, AlertNotice


def payload(notice: AlertNotice, *, now: datetime) -> list[dict[str, Any]]:
    """Return what is still worth telling; an alert whose time has passed while nobody could be told has ended by itself."""
    return [_alert(alert) for alert in notice.alerts if alert.status == "resolved" or alert.ends_at > now]


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "labels": alert.labels,
        "annotations": {name: text for name, text in alert.annotations.items() if text},
        "startsAt": _instant(alert.starts_at),
        "endsAt": _instant(alert.ends_at),
    }


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
