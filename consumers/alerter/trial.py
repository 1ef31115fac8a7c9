"""A test alert: it looks like one of the rule's own, says what it is, and ends by itself. Pure."""

from datetime import timedelta
from typing import Final

from consumers.alerter.rules import CompiledRule
from consumers.alerter.streaks import JOB, fingerprint, instant
from schemas.alert import Alert, AlertNotice

INSTANCE: Final = "gpubus-test"
LIFE: Final = timedelta(minutes=2)


def test_notice(compiled: CompiledRule, *, slot: int) -> AlertNotice:
    """Return what tells a test alert of a rule."""
    rule, at = compiled.rule, instant(slot)
    labels = {"alertname": rule.name, "severity": rule.severity, "job": JOB, "instance": INSTANCE}
    annotations = {
        "summary": f"Test of alert rule {rule.name}: nothing is wrong",
        "description": "Somebody ran `gpubus alerts test` to see that alerts arrive. This one ends by itself.",
        "runbook_url": rule.runbook_url,
    }
    alert = Alert(
        status="firing",
        fingerprint=fingerprint(labels),
        labels=labels,
        annotations=annotations,
        starts_at=at,
        ends_at=at + LIFE,
    )
    return AlertNotice(rule=f"{rule.name} (test)", slot=slot, alerts=(alert,))
