"""The checklist of guides for production: replicas, spreading, bounds, quotas and monitoring."""

import json
from collections.abc import Mapping
from typing import Any, Final

from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeError
from deploy.doctor.findings import Finding, good
from deploy.doctor.parts import Parts

GROUPS: Final = ("controller", "scheduler", "webhook", "monitor")
"""Groups of which guides for production want two or three, on different nodes."""


async def production(client: Client, parts: Parts, release: str) -> list[Finding]:
    """Judge groups, quotas and monitoring by the checklists of guides for production."""
    found = []
    for part in GROUPS:
        for one in parts.workloads:
            if (one["kind"], one["metadata"]["name"]) == ("Deployment", f"{release}-{part}"):
                found += deployment_findings(part, one)
    quotas = json.loads(await client.call("GET", resource_path("tensor-fusion.ai/v1", "gpuresourcequotas")))["items"]
    if quotas:
        found.append(good("production/quotas", f"{len(quotas)} namespaces have a quota of GPUs"))
    else:
        fix = "write a GPUResourceQuota in each namespace of users"
        says = "no namespace has a quota of GPUs: one team may take them all"
        found.append(Finding(check="production/quotas", severity="warning", says=says, fix=fix))
    try:
        text = await client.find(resource_path("monitoring.coreos.com/v1", "servicemonitors"))
    except KubeError:
        text = None
    monitors = json.loads(text)["items"] if text is not None else ()
    ours = [one for one in monitors if one["metadata"]["name"] == release]
    if ours:
        found.append(good("production/monitoring", "Prometheus is told of us by a ServiceMonitor"))
    else:
        fix = "monitor.serviceMonitor.enabled: true, where the Prometheus operator runs"
        says = "there is no ServiceMonitor: Prometheus does not know of us"
        found.append(Finding(check="production/monitoring", severity="warning", says=says, fix=fix))
    return found


def deployment_findings(part: str, deployment: Mapping[str, Any]) -> list[Finding]:
    """Judge a group of roles by the checklist of production guides."""
    check, spec = f"production/{part}", deployment["spec"]["template"]["spec"]
    problems: list[tuple[str, str]] = []
    wanted = deployment["spec"].get("replicas", 1)
    if wanted == 1:
        problems.append(("there is one replica, and none while it restarts", f"{part}.replicas: 2"))
    if not (spec.get("affinity") or {}).get("podAntiAffinity"):
        problems.append(("replicas may share a node", f"{part}.affinity.podAntiAffinity"))
    if any(not (c.get("resources") or {}).get("limits") for c in spec["containers"]):
        problems.append(("CPU and memory are not limited", f"{part}.resources.limits"))
    if spec.get("priorityClassName") not in ("system-cluster-critical", "system-node-critical"):
        problems.append(("other pods may push it out", f"{part}.priorityClassName: system-cluster-critical"))
    found = [Finding(check=check, severity="warning", says=says, fix=fix) for says, fix in problems]
    return found or [good(check, f"{wanted} replicas, spread, bounded and protected")]
