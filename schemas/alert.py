"""Alerts: the rules in force, how far each streak has come, and what is told to people."""

from typing import Annotated, Literal

import msgspec

from schemas.cluster import Amount
from schemas.event import Timestamp

AlertStatus = Literal["firing", "resolved"]
TagName = Annotated[str, msgspec.Meta(pattern="^[a-z_][a-z0-9_]{0,62}$")]
"""Name of a column, which goes into SQL as it is."""

ExtraPodLabels = Annotated[dict[str, TagName], msgspec.Meta(max_length=16)]


class AlertRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One rule as users write it, ``dynamicConfig.alertRules[]`` of the TensorFusion chart; same names, same meaning.

    Attributes:
        name: Name of the rule and of its alerts.
        query: SQL that returns a row per alert; a Go template over ``.Threshold``, ``.Conditions``, ``.Severity``, ``.Name``.
        threshold: Number that the query compares with.
        evaluation_interval: Go duration between two evaluations, also the window of ``.Conditions``.
        consecutive_count: Evaluations in a row that must find the same alert before it fires.
        severity: Such as ``P1``.
        summary: One line for people; a template over the row's columns and ``.Threshold``, as are the next two.
        description: The whole story.
        alert_target_instance: What the alert is about; alerts of a rule differ by it.
        runbook_url: Where to read what to do.
    """

    name: str
    query: str
    threshold: float
    evaluation_interval: str
    consecutive_count: int = 1
    severity: str = ""
    summary: str = ""
    description: str = ""
    alert_target_instance: str = ""
    runbook_url: str = msgspec.field(default="", name="runbookURL")


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force.

    Attributes:
        digest: Hash of the rules.
        origin: Where they were read, such as a file name.
        revision: Grows with every change of the origin; an older one never replaces a newer one.
        metrics_ttl: How long metrics are kept, a Go duration with days; empty leaves it as it is.
        extra_pod_labels: Labels of pods that metrics of workers carry, each with the name of its tag.
    """

    digest: str
    origin: str
    revision: int
    rules: tuple[AlertRule, ...]
    metrics_ttl: str = ""
    extra_pod_labels: ExtraPodLabels = {}


class RuleRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A set of rules that was not taken, and what is wrong with it. Those in force stay."""

    digest: str
    origin: str
    revision: int
    problems: tuple[str, ...]


class Streak(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often in a row one alert was found.

    Attributes:
        fingerprint: Identity of the alert: FNV-64a over its sorted labels, in hexadecimal.
        labels: Labels of the alert.
        annotations: Texts as rendered when it was first seen.
        count: Evaluations in a row that found it.
        since: When it was first seen.
        firing: It has reached the rule's count and was told.
        nodes: Nodes that its rows named in their column ``node``.
        silent_since: No row was found from then on, but one of its nodes says nothing of its GPUs, so that nobody knows whether
            it is over; None while rows are found.
    """

    fingerprint: str
    labels: dict[str, str]
    annotations: dict[str, str]
    count: Amount
    since: Timestamp
    firing: bool = False
    nodes: tuple[str, ...] = ()
    silent_since: Timestamp | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told about one alert. ``ends_at`` lies ahead while it fires: unless told again it is over then."""

    status: AlertStatus
    fingerprint: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: Timestamp
    ends_at: Timestamp


class AlertNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What one evaluation of one rule has to tell.

    Attributes:
        slot: The evaluation, as the time of its tick in nanoseconds since the epoch.
    """

    rule: str
    slot: Amount
    alerts: tuple[Alert, ...]


class RuleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a rule has come, replaced by compare-and-set at every evaluation.

    Attributes:
        rule: Name of the rule.
        digest: Hash of the rule that was evaluated last.
        slot: Its last evaluation, as the time of the tick in nanoseconds since the epoch.
        streaks: One per alert that the last good evaluation found, in order of fingerprints.
        failures: Evaluations in a row that failed.
        error: Why the last one failed; empty when it did not.
        failing_since: When they began to fail.
        notice: What the last evaluation has to tell. Whoever comes next makes sure that it is told.
    """

    rule: str
    digest: str = ""
    slot: Amount = 0
    streaks: tuple[Streak, ...] = ()
    failures: Amount = 0
    error: str = ""
    failing_since: Timestamp | None = None
    notice: AlertNotice | None = None
