"""The cluster: our kinds, admission from end to end, certificates, and the checklist of production."""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeRefusedError
from deploy.doctor.findings import Finding, good
from deploy.doctor.guard import guard_findings
from deploy.doctor.parts import Parts, part_findings, read_parts
from deploy.doctor.production import production
from deploy.doctor.rights import rights
from schemas.dialects.tf_keys import ENABLED
from schemas.kube.crd import definition
from schemas.kube.kinds import KINDS

CRDS: Final = "apiextensions.k8s.io/v1"
SOON_DAYS: Final = 14
ASKED_IN: Final = "default"
_FORBIDDEN: Final = 403


async def examine_cluster(client: Client, namespace: str, release: str) -> list[Finding]:
    """Look at everything in the API server; what we may not see is said to be unknown."""
    found: list[Finding] = []
    parts = Parts((), frozenset(), pools_run_agents=False)

    async def look_at_parts() -> list[Finding]:
        nonlocal parts
        parts = await read_parts(client, namespace, release)
        return part_findings(parts, namespace, release)

    looks: tuple[tuple[str, Callable[[], Awaitable[list[Finding]]]], ...] = (
        ("cluster/crds", lambda: _crds(client)),
        ("parts", look_at_parts),
        ("cluster/webhook", lambda: _webhook(client, release, passive=parts.passive)),
        ("cluster/guard", lambda: guard_findings(client, parts, namespace, release)),
        ("cluster/admission", lambda: _admission(client, release, passive=parts.passive)),
        ("cluster/certificates", lambda: _certificates(client, parts, namespace, release)),
        ("cluster/rights", lambda: rights(client, namespace, release)),
        ("production", lambda: production(client, parts, release)),
    )
    for check, look in looks:
        try:
            found += await look()
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


async def _hooks(client: Client, release: str) -> list[dict[str, Any]] | None:
    name, api = f"{release}-mutating-webhook", "admissionregistration.k8s.io/v1"
    there = await _get(client, resource_path(api, "mutatingwebhookconfigurations", name=name))
    return None if there is None else there["webhooks"]


async def _webhook(client: Client, release: str, *, passive: bool) -> list[Finding]:
    name = f"{release}-mutating-webhook"
    hooks = await _hooks(client, release)
    check = "cluster/webhook"
    if passive and hooks is None:
        says = "this installation only watches: pods that ask for GPUs are another's"
        fix = "in the maintenance window, when nobody else gives out GPUs any more: migration.passive: false"
        return [Finding(check=check, severity="warning", says=says, fix=fix)]
    if hooks is None:
        fix = "install the chart, or: gpubus schema webhook --service NAMESPACE/NAME --ca ca.crt | kubectl apply -f -"
        says = f"there is no MutatingWebhookConfiguration {name}: pods that ask for GPUs are nobody's"
        return [Finding(check=check, severity="critical", says=says, fix=fix)]
    found = []
    for hook in hooks:
        if not hook["clientConfig"].get("caBundle"):
            fix = f"kubectl create job --from=cronjob/{release}-issuer {release}-issuer-now, or look at cert-manager's cainjector"
            says = "the webhook names no authority: the API server refuses every pod that asks for GPUs"
            found.append(Finding(check=check, severity="critical", says=says, fix=fix))
        if hook.get("failurePolicy") != "Fail":
            fix = "controller.admissionWebhooks.failurePolicy: Fail"
            says = "failurePolicy is Ignore: while no gateway answers, pods start without the GPUs that they ask for"
            found.append(Finding(check=check, severity="warning", says=says, fix=fix))
    return found or [good(check, "the webhook is registered, and fails closed")]


async def _admission(client: Client, release: str, *, passive: bool) -> list[Finding]:
    """Send a pod through admission that is not stored, in a namespace whose pods are sent to us."""
    check = "cluster/admission"
    if passive:
        return []
    hooks = await _hooks(client, release)
    namespaces = json.loads(await client.call("GET", resource_path("v1", "namespaces")))["items"]
    asked_in = asked_namespace(hooks or (), namespaces)
    if not asked_in:
        says = "no namespace is one whose pods are sent to us: pods that ask for GPUs are nobody's"
        fix = "label the namespaces of users as webhook.namespaceLabels says, or leave that empty for all"
        return [Finding(check=check, severity="critical", says=says, fix=fix)]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "gpubus-doctor",
            "namespace": asked_in,
            "labels": {ENABLED: "true"},
            "annotations": {"tensor-fusion.ai/tflops-request": "1", "tensor-fusion.ai/vram-request": "1Gi"},
        },
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    path = resource_path("v1", "pods", asked_in)
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


def asked_namespace(hooks: Sequence[Mapping[str, Any]], namespaces: Sequence[Mapping[str, Any]]) -> str:
    """Return a namespace whose pods every webhook is sent, ``default`` if it is one; empty for none."""
    reached = [
        one["metadata"]["name"]
        for one in namespaces
        if all(_chosen(hook.get("namespaceSelector") or {}, one["metadata"].get("labels") or {}) for hook in hooks)
    ]
    return ASKED_IN if ASKED_IN in reached else next(iter(sorted(reached)), "")


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector means an object; source: ``LabelSelector`` of ``meta/v1``."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for term in selector.get("matchExpressions") or ():
        has, within = term["key"] in labels, labels.get(term["key"]) in (term.get("values") or ())
        verdict = {"In": within, "NotIn": not within, "Exists": has, "DoesNotExist": not has}
        if not verdict[term["operator"]]:
            return False
    return True


async def _certificates(client: Client, parts: Parts, namespace: str, release: str) -> list[Finding]:
    """Judge the Secrets that pods mount, whoever made them, and that of our own authority."""
    own = f"{release}-ca"
    mounted = {
        volume["secret"]["secretName"]
        for one in parts.workloads
        for volume in one["spec"]["template"]["spec"].get("volumes") or ()
        if "secret" in volume
    }
    found = []
    for name in sorted({*mounted, own}):
        there = await _get(client, resource_path("v1", "secrets", namespace, name))
        data = (there or {}).get("data") or {}
        if there is None and name in mounted:
            says = f"Secret {name} is gone: pods that mount it do not start any more"
            fix = f"kubectl create job -n {namespace} --from=cronjob/{release}-issuer issue-now, or whoever made it"
            found.append(Finding(check=f"cluster/certificates/{name}", severity="critical", says=says, fix=fix))
        for key in ("tls.crt", "ca.crt"):
            if key in data:
                found.append(certificate_finding(name, base64.b64decode(data[key]), datetime.now(UTC)))
                break
    if found:
        return found
    says = f"no part of {release} mounts a certificate: bus and gateway are somebody else's"
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
