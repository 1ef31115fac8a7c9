"""The bus: its streams with their copies and room, what could not be handled, agents that are silent, drift, and clocks."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors

from bus import codec, history
from bus.connection import Bus
from bus.errors import ApiError, UndecodableError
from bus.follower import Record
from bus.streams import CAPACITY, STATE, StreamLimits, declarations
from bus.subjects import names
from deploy.doctor.findings import Finding, Severity, good
from schemas.alert import RuleSet
from schemas.cluster import GpuInventory, Node
from schemas.observed import Drift

NEARLY_FULL: Final = 0.8
FULL: Final = 0.95
REFUSES_WHEN_FULL: Final = ("LEDGER", "WORK")
MOST_SKEW_S: Final = 2.0
COPIES: Final = 3
_NAMED: Final = 5


async def examine_bus(bus: Bus) -> list[Finding]:
    """Look at everything on the bus.

    Raises:
        BusError: It stopped answering.
    """
    found: list[Finding] = []
    for config in declarations(StreamLimits()):
        name = config.name or ""
        try:
            info = json.loads(await bus.api(f"STREAM.INFO.{name}"))
        except ApiError as error:
            found.append(
                Finding(
                    check=f"bus/streams/{name}",
                    severity="critical",
                    says=f"stream {name} cannot be read: {error.description}",
                    fix="start any role: whoever starts first makes the streams that are missing",
                )
            )
        except (nats.errors.Error, TimeoutError):
            found.append(
                Finding(
                    check=f"bus/streams/{name}",
                    severity="critical",
                    says=f"stream {name} has no leader",
                    fix="bring back a majority of the NATS servers: kubectl get pods -l app.kubernetes.io/component=nats",
                )
            )
        else:
            found += stream_findings(name, info, datetime.now(UTC))
    states, _ = await history.newest(bus, STATE, ["gpubus.state.node.*", "gpubus.state.gpu.*", "gpubus.state.rules.*"])
    drifts, _ = await history.newest(bus, CAPACITY, ["gpubus.drift.*"])
    found += agent_findings(states, datetime.now(UTC))
    found += drift_findings(drifts)
    found += rule_findings(states)
    return sorted(found, key=lambda finding: finding.check)


def stream_findings(name: str, info: dict[str, Any], now: datetime) -> list[Finding]:
    """Judge what the server says of a stream."""
    check, config, cluster = f"bus/streams/{name}", info["config"], info.get("cluster") or {}
    found: list[Finding] = []
    replicas = config.get("num_replicas", 1)
    if replicas < COPIES:
        found.append(
            Finding(
                check=check,
                severity="warning",
                says=f"stream {name} has {replicas} copy: a lost disk loses it",
                fix="run three NATS servers (bus.replicas: 3) and roles with --replicas 3 from the first start",
            )
        )
    for peer in cluster.get("replicas") or ():
        if peer.get("offline") or not peer.get("current", True):
            what = "is away" if peer.get("offline") else f"is {peer.get('lag', 0)} messages behind"
            found.append(
                Finding(
                    check=check,
                    severity="warning",
                    says=f"the copy of {name} on {peer['name']} {what}",
                    fix=f"kubectl describe pod {peer['name']}; while another is lost too, nothing can be written",
                )
            )
    found += _room(check, name, info["state"].get("bytes", 0), config.get("max_bytes", -1))
    if name == "DEAD" and (count := info["state"].get("messages", 0)):
        found.append(
            Finding(
                check="bus/dead-letters",
                severity="warning",
                says=f"{count} messages could not be handled",
                fix="gpubus dead list",
            )
        )
    if name == STATE and (told := info.get("ts")):
        found += [_skew("bus/clock", "the NATS server", (now - datetime.fromisoformat(told)).total_seconds())]
    return found or [good(check, f"{replicas} copies, all current")]


def _room(check: str, name: str, used: int, most: int) -> list[Finding]:
    share = used / most if most > 0 else 0.0
    if share < NEARLY_FULL:
        return []
    refuses = name in REFUSES_WHEN_FULL
    severity: Severity = "critical" if refuses and share >= FULL else "warning"
    then = "writes are refused" if refuses else "the oldest is dropped"
    fix = (
        "raise the stream's limit, and before that the volumes of NATS: patch each PersistentVolumeClaim, delete the "
        "StatefulSet with --cascade=orphan, helm upgrade with the new bus.persistence.size and bus.jetstream.maxFile"
    )
    return [
        Finding(check=check, severity=severity, says=f"{name} is {share:.0%} full: when it is full {then}", fix=fix)
    ]


def _skew(check: str, whose: str, seconds: float) -> Finding:
    if abs(seconds) <= MOST_SKEW_S:
        return good(check, f"the clock of {whose} agrees with ours")
    fix = "start time synchronisation (chrony, systemd-timesyncd) on both"
    return Finding(
        check=check, severity="warning", says=f"the clock of {whose} differs from ours by {seconds:+.1f} s", fix=fix
    )


def agent_findings(records: Sequence[Record], now: datetime) -> list[Finding]:
    """Judge whether the agents of all nodes speak, and by which clocks."""
    nodes: set[str] = set()
    silent: list[str] = []
    speaking: set[str] = set()
    skewed: list[str] = []
    for record in records:
        _, kind, name = names(record.subject)
        try:
            if kind == "node":
                nodes.add(codec.decode_as(Node, record.payload).data.name)
            elif kind == "gpu":
                said = codec.decode_as(GpuInventory, record.payload).data
                speaking.add(name)
                age = now.timestamp() - record.time_ns / 1e9
                if said.valid_s and age > said.valid_s:
                    silent.append(f"{name} ({age:.0f} s)")
                if abs(said.observed_at.timestamp() - record.time_ns / 1e9) > max(MOST_SKEW_S, said.valid_s):
                    skewed.append(name)
        except UndecodableError as error:
            silent.append(f"{name} ({error.reason})")
    found = []
    if silent:
        says = f"agents of {len(silent)} nodes are silent, and their GPUs take no new pods: {_some(silent)}"
        fix = "kubectl get pods -l app.kubernetes.io/component=agent -o wide; kubectl logs of the one on that node"
        found.append(Finding(check="agents/silent", severity="critical", says=says, fix=fix))
    if missing := sorted(nodes - speaking):
        says = f"{len(missing)} nodes of pools have never had an agent: {_some(missing)}"
        fix = (
            "see whether the agents' node selector and tolerations fit these nodes (devicePlugin in the chart's values)"
        )
        found.append(Finding(check="agents/missing", severity="warning", says=says, fix=fix))
    if skewed:
        says = f"the clocks of {len(skewed)} nodes differ from the bus's: {_some(skewed)}"
        fix = "start time synchronisation (chrony, systemd-timesyncd) there"
        found.append(Finding(check="agents/clock", severity="warning", says=says, fix=fix))
    return found or [good("agents", f"{len(speaking)} agents speak")]


def drift_findings(records: Sequence[Record]) -> list[Finding]:
    """Judge where nodes differ from the ledger."""
    open_: list[str] = []
    for record in records:
        try:
            said = codec.decode_as(Drift, record.payload).data
        except UndecodableError:
            continue
        if not said.resolved:
            open_.append(f"{said.node}: {said.kind}, ledger {said.ledger}, seen {said.observed}")
    if not open_:
        return [good("drift", "no node differs from its ledger record")]
    fix = "gpubus events 'gpubus.drift.>' --last 20"
    return [Finding(check="drift", severity="warning", says=f"{len(open_)} nodes differ: {_some(open_)}", fix=fix)]


def rule_findings(records: Sequence[Record]) -> list[Finding]:
    """Judge whether alert rules are in force."""
    for record in records:
        if record.subject == "gpubus.state.rules.active":
            try:
                rules = codec.decode_as(RuleSet, record.payload).data
            except UndecodableError:
                continue
            return [good("alerts/rules", f"{len(rules.rules)} alert rules of {rules.origin} are in force")]
    says = "no alert rules are in force: nobody is told when GPUs fail or fill up"
    fix = "name a metrics store (greptime.host), and see that an alerter runs: gpubus alerts status"
    return [Finding(check="alerts/rules", severity="warning", says=says, fix=fix)]


def _some(words: Sequence[str]) -> str:
    more = f", and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more
