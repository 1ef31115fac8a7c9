"""The cluster: our kinds, admission from end to end, certificates, and the checklist of production."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeError, KubeRefusedError
from deploy.doctor.findings import Finding, good
from deploy.doctor.rights import rights
from schemas.dialects.tf_keys import ENABLED
from schemas.kube.crd import definition
from schemas.kube.kinds import KINDS

CRDS: Final = "apiextensions.k8s.io/v1"
SOON_DAYS: Final = 14
ASKED_IN: Final = "default"
_FORBIDDEN: Final = 403
GROUPS: Final = ("scheduler", "webhook")
"""Groups of which guides for production want two or three, on different nodes."""


async def examine_cluster(client: Client, namespace: str, release: str) -> list[Finding]:
    """Look at everything in the API server; what we may not see is said to be unknown."""
    found: list[Finding] = []
    for check, work in (
        ("cluster/crds", _crds(client)),
        ("cluster/webhook", _webhook(client, release)),
        ("cluster/admission", _admission(client)),
        ("cluster/certificates", _certificates(client, namespace, release)),
        ("cluster/rights", rights(client, namespace, release)),
        ("production", _production(client, namespace, release)),
    ):
        try:
            found += await work
        except KubeRefusedError as error:
            fix = "ask with an account that may read this: --kubeconfig of an administrator"
            forbidden = error.code == _FORBIDDEN
            says = f"we may not look: {error.message}" if forbidden else str(error)
            found.append(
                Finding(
                    check=check,
                    severity="unknown" if forbidden else "critical",
                    says=says,
                    fix=fix if forbidden else "",
                )
            )
    return found


async def _get(client: Client, path: str) -> dict[str, Any] | None:
    found = await client.find(path)
    return None if found is None else json.loads(found)


async def _crds(client: Client) -> list[Finding]:
    missing, old = [], []
    for kind in KINDS:
        wanted = definition(kind)
        there = await _get(client, resource_path(CRDS, "customresourcedefinitions", name=wanted["metadata"]["name"]))
        if there is None:
            missing.append(kind.plural)
        else:
            ours = wanted["spec"]["versions"][0]["schema"]
            theirs = next((v["schema"] for v in there["spec"]["versions"] if v["name"] == "v1"), None)
            if _stated(theirs) != _stated(ours):
                old.append(kind.plural)
    fix = "gpubus schema crds | kubectl apply --server-side --force-conflicts -f -"
    if missing:
        return [
            Finding(check="cluster/crds", severity="critical", says=f"kinds are missing: {', '.join(missing)}", fix=fix)
        ]
    if old:
        says = f"kinds are those of another version: {', '.join(old)}"
        return [Finding(check="cluster/crds", severity="warning", says=says, fix=fix)]
    return [good("cluster/crds", f"all {len(KINDS)} kinds are there, as this version has them")]


def _stated(schema: Any) -> Any:
    """Return a schema without what says nothing: the API server drops it."""
    if not isinstance(schema, dict):
        return schema
    return {key: _stated(value) for key, value in schema.items() if value != {}}


async def _webhook(client: Client, release: str) -> list[Finding]:
    name = f"{release}-mutating-webhook"
    api = "admissionregistration.k8s.io/v1"
    there = await _get(client, resource_path(api, "mutatingwebhookconfigurations", name=name))
    check = "cluster/webhook"
    if there is None:
        fix = "install the chart, or: gpubus schema webhook --service NAMESPACE/NAME --ca ca.crt | kubectl apply -f -"
        says = f"there is no MutatingWebhookConfiguration {name}: pods that ask for GPUs are nobody's"
        return [Finding(check=check, severity="critical", says=says, fix=fix)]
    found = []
    for hook in there["webhooks"]:
        if not hook["clientConfig"].get("caBundle"):
            fix = f"kubectl create job --from=cronjob/{release}-issuer {release}-issuer-now, or look at cert-manager's cainjector"
            says = "the webhook names no authority: the API server refuses every pod that asks for GPUs"
            found.append(Finding(check=check, severity="critical", says=says, fix=fix))
        if hook.get("failurePolicy") != "Fail":
            fix = "controller.admissionWebhooks.failurePolicy: Fail"
            says = "failurePolicy is Ignore: while no gateway answers, pods start without the GPUs that they ask for"
            found.append(Finding(check=check, severity="warning", says=says, fix=fix))
    return found or [good(check, "the webhook is registered, and fails closed")]


async def _admission(client: Client) -> list[Finding]:
    """Send a pod through admission that is not stored."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "gpubus-doctor",
            "namespace": ASKED_IN,
            "labels": {ENABLED: "true"},
            "annotations": {"tensor-fusion.ai/tflops-request": "1", "tensor-fusion.ai/vram-request": "1Gi"},
        },
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    check = "cluster/admission"
    path = resource_path("v1", "pods", ASKED_IN)
    fix = "kubectl logs -l gpubus.io/admission=true -c gateway; the API server must reach the webhook's Service"
    try:
        answer = json.loads(await client.call("POST", path, query={"dryRun": "All"}, body=json.dumps(pod).encode()))
    except KubeRefusedError as error:
        if error.code == _FORBIDDEN and "webhook" not in error.message:
            raise
        return [Finding(check=check, severity="critical", says=f"a pod with GPUs is refused: {error.message}", fix=fix)]
    if answer["spec"].get("schedulerName") in ("", None, "default-scheduler"):
        says = "a pod that asks for GPUs passes untouched: nobody would give it any"
        return [Finding(check=check, severity="critical", says=says, fix="see cluster/webhook above")]
    return [good(check, "a pod that asks for GPUs is taken over")]


async def _certificates(client: Client, namespace: str, release: str) -> list[Finding]:
    found = []
    for part in ("ca", "webhook-tls", "nats-tls", "kube-scheduler-tls"):
        name = f"{release}-{part}"
        there = await _get(client, resource_path("v1", "secrets", namespace, name))
        if there is not None and "tls.crt" in (there.get("data") or {}):
            found.append(certificate_finding(name, base64.b64decode(there["data"]["tls.crt"]), datetime.now(UTC)))
    if found:
        return found
    says = f"no Secret {release}-webhook-tls is there: the certificates are somebody else's"
    return [
        Finding(check="cluster/certificates", severity="unknown", says=says, fix="see that they are renewed in time")
    ]


def certificate_finding(name: str, certificate: bytes, now: datetime) -> Finding:
    """Judge how long a certificate is good for."""
    from deploy.certificates.authority import life

    check = f"cluster/certificates/{name}"
    fix = "run the issuer now: kubectl create job --from=cronjob/RELEASE-issuer issue-now; or look at cert-manager"
    try:
        ends = life(certificate).ends
    except ValueError as error:
        return Finding(check=check, severity="critical", says=f"Secret {name} holds no certificate: {error}", fix=fix)
    days = (ends - now).total_seconds() / 86_400
    if days < 0:
        return Finding(
            check=check, severity="critical", says=f"the certificate in {name} has ended {-days:.0f} days ago", fix=fix
        )
    if days < SOON_DAYS:
        says = f"the certificate in {name} ends in {days:.0f} days, and should have been renewed"
        return Finding(check=check, severity="warning", says=says, fix=fix)
    return good(check, f"good for {days:.0f} days")


async def _production(client: Client, namespace: str, release: str) -> list[Finding]:
    found = []
    for part in ("controller", *GROUPS, "monitor"):
        there = await _get(client, resource_path("apps/v1", "deployments", namespace, f"{release}-{part}"))
        if there is not None:
            found += deployment_findings(part, there)
    quotas = json.loads(await client.call("GET", resource_path("tensor-fusion.ai/v1", "gpuresourcequotas")))["items"]
    if quotas:
        found.append(good("production/quotas", f"{len(quotas)} namespaces have a quota of GPUs"))
    else:
        fix = "write a GPUResourceQuota in each namespace of users"
        says = "no namespace has a quota of GPUs: one team may take them all"
        found.append(Finding(check="production/quotas", severity="warning", says=says, fix=fix))
    try:
        monitors = await _get(client, resource_path("monitoring.coreos.com/v1", "servicemonitors", "", ""))
    except KubeError:
        monitors = None
    ours = [one for one in (monitors or {}).get("items", ()) if one["metadata"]["name"] == release]
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
    problems = []
    wanted = deployment["spec"].get("replicas", 1)
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    if ready < wanted:
        fix = f"kubectl describe deployment {deployment['metadata']['name']}"
        problems.append(("critical" if not ready else "warning", f"{ready} of {wanted} replicas are ready", fix))
    if wanted < 2:  # noqa: PLR2004  one is none while it restarts
        problems.append(("warning", "there is one replica, and none while it restarts", f"{part}.replicas: 2"))
    if not (spec.get("affinity") or {}).get("podAntiAffinity"):
        problems.append(("warning", "replicas may share a node", f"{part}.affinity.podAntiAffinity"))
    if any(not (c.get("resources") or {}).get("limits") for c in spec["containers"]):
        problems.append(("warning", "CPU and memory are not limited", f"{part}.resources.limits"))
    if spec.get("priorityClassName") not in ("system-cluster-critical", "system-node-critical"):
        problems.append(("warning", "other pods may push it out", f"{part}.priorityClassName: system-cluster-critical"))
    found = [
        Finding(check=check, severity="critical" if severity == "critical" else "warning", says=says, fix=fix)
        for severity, says, fix in problems
    ]
    return found or [good(check, f"{wanted} replicas, spread, bounded and protected")]
