"""The parts of an installation: whether each is there, runs as many pods as it is to, and has taken its last change."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bus.kube.client import Client, resource_path
from deploy.doctor.findings import Finding, Severity, good
from deploy.doctor.rights import roles_of

PASSIVE: Final = "gpubus.io/passive"
"""Label of the Deployments of an installation that only watches: ``migration.passive`` in the chart's values."""

KINDS: Final = {"deployments": "Deployment", "statefulsets": "StatefulSet", "daemonsets": "DaemonSet"}
NEEDED: Final = ("watcher", "allocator", "binder", "gateway", "mutator")
"""Roles without which no pod gets a GPU."""

WATCHING: Final = ("watcher",)
"""What an installation needs that only watches."""

_JOBS: Final = ("issuer",)
"""Accounts of what runs now and then."""


class Problem(NamedTuple):
    """Something that is wrong with one part."""

    severity: Severity
    says: str
    fix: str


class Parts(NamedTuple):
    """What the API server has of one release."""

    workloads: tuple[Mapping[str, Any], ...]
    expected: frozenset[str]
    pools_run_agents: bool

    @property
    def passive(self) -> bool:
        """Whether it only watches, until a migration's maintenance window."""
        return any(PASSIVE in (one["metadata"].get("labels") or {}) for one in self.workloads)


async def read_parts(client: Client, namespace: str, release: str) -> Parts:
    """Read what there is, and what should be: whatever has an account or a Service of its own runs as well."""
    query = {"labelSelector": f"app.kubernetes.io/instance={release},app.kubernetes.io/name=gpubus"}

    async def read(api: str, plural: str) -> list[dict[str, Any]]:
        path = resource_path(api, plural, namespace)
        found: list[dict[str, Any]] = json.loads(await client.call("GET", path, query=query))["items"]
        return found

    workloads = [{**one, "kind": kind} for plural, kind in KINDS.items() for one in await read("apps/v1", plural)]
    store = f"{release}-greptimedb"  # it has no account of its own
    expected = {one["metadata"]["name"] for one in await read("v1", "serviceaccounts")}
    expected |= {store} & {one["metadata"]["name"] for one in await read("v1", "services")}
    pools = await client.find(resource_path("tensor-fusion.ai/v1", "gpupools"))
    agents = pools is not None and any(
        (pool["spec"].get("componentConfig") or {}).get("hypervisor") for pool in json.loads(pools)["items"]
    )
    return Parts(tuple(workloads), frozenset(expected), agents)


def part_findings(parts: Parts, namespace: str, release: str) -> list[Finding]:
    """Judge what is gone or stands still, beside the checklist that Deployments of groups have of their own."""
    there = {one["metadata"]["name"] for one in parts.workloads}
    again = f"helm upgrade {release} -n {namespace} with the chart and the values of before: it makes what is missing"
    gone = sorted(parts.expected - there - {f"{release}-{job}" for job in _JOBS})
    if parts.pools_run_agents:
        gone = [name for name in gone if name != f"{release}-agent"]
    found = [
        Finding(check=f"parts/{name}", severity="critical", says=f"{name} is gone: nothing runs as it", fix=again)
        for name in gone
    ]
    found += _role_findings(parts, namespace, release)
    for one in parts.workloads:
        name = one["metadata"]["name"]
        problems = list(standing(one))
        found += [Finding(check=f"parts/{name}", severity=p.severity, says=p.says, fix=p.fix) for p in problems]
        if not problems:
            found.append(good(f"parts/{name}", "all its pods are ready, and of the newest version"))
    return found


def _role_findings(parts: Parts, namespace: str, release: str) -> list[Finding]:
    played: Collection[str] = {
        role
        for one in parts.workloads
        if one["kind"] == "Deployment" and one["spec"].get("replicas", 1)
        for role in roles_of(one["spec"]["template"]["spec"])
    }
    lacks = [role for role in (WATCHING if parts.passive else NEEDED) if role not in played]
    if not lacks:
        return []
    says = f"nobody plays {', '.join(lacks)}: pods that ask for GPUs wait"
    fix = f"see that --namespace {namespace} and --release {release} are right, and that a group of the chart has these roles"
    return [Finding(check="parts/roles", severity="critical", says=says, fix=fix)]


def standing(workload: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a Deployment, StatefulSet or DaemonSet by what its controller says of it."""
    kind, name = workload["kind"], workload["metadata"]["name"]
    namespace = workload["metadata"].get("namespace", "default")
    status: Mapping[str, Any] = workload.get("status") or {}
    of = f"-n {namespace} {kind.lower()}/{name}"
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        says = "its last change has not been taken up by kube-controller-manager"
        yield Problem("warning", says, f"kubectl rollout status {of}; look at kube-controller-manager if that stays")
    daemons = kind == "DaemonSet"
    wanted = status.get("desiredNumberScheduled", 0) if daemons else workload["spec"].get("replicas", 1)
    if not wanted:
        if daemons:
            fix = "see devicePlugin.nodeSelector, devicePlugin.tolerations and initialGpuNodeLabelSelector in the chart's values"
            yield Problem("warning", "no node has the labels that it wants", fix)
        else:
            yield Problem("critical", "it is scaled to 0", f"kubectl scale {of} --replicas=N, as values say")
        return
    ready = status.get("numberReady" if daemons else "readyReplicas", 0)
    if ready < wanted:
        says = f"{ready} of {wanted} pods are ready"
        yield Problem("warning" if ready else "critical", says, f"kubectl describe {of}, and its pods")
    updated = status.get("updatedNumberScheduled" if daemons else "updatedReplicas", 0)
    if updated < wanted:
        says = f"{updated} of {wanted} pods are of the newest version: the change is not carried out yet"
        yield Problem("warning", says, f"kubectl rollout status {of}; a pod that stays Pending says what it lacks")
    yield from _conditions(status.get("conditions") or (), f"kubectl describe {of}, and its pods")


def _conditions(conditions: Sequence[Mapping[str, Any]], fix: str) -> Iterator[Problem]:
    wrong = {"Available": "False", "Progressing": "False", "ReplicaFailure": "True"}
    words = {
        "Available": "it is not available",
        "Progressing": "its change stands still",
        "ReplicaFailure": "it gets no pods",
    }
    for one in conditions:
        if wrong.get(one["type"]) == one["status"]:
            yield Problem("critical", f"{words[one['type']]}: {one.get('message') or one.get('reason', '')}", fix)
