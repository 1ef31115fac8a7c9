"""What accounts may do, against what their roles do: ``deploy/rbac`` is the one source of that, and tests prove it exact."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bus.kube.client import Client, resource_path
from deploy.doctor.findings import Finding, good

RBAC: Final = Path(__file__).parents[1] / "rbac"
REVIEWS: Final = "authorization.k8s.io/v1"
FIX: Final = "helm upgrade with the chart of this version, or kubectl apply -f deploy/rbac"


class Right(NamedTuple):
    """One verb on one resource, in every namespace or only where gpubus is."""

    verb: str
    group: str
    resource: str
    everywhere: bool

    @property
    def text(self) -> str:
        """Name it, for people."""
        return f"{self.verb} {self.resource}"


def rights_of(roles: Iterable[str]) -> list[Right]:
    """Return everything that roles do in the API server, as the manifests grant it to their accounts."""
    wanted = {f"gpubus-{role}" for role in roles}
    rules = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in _documents("roles.yaml") if "rules" in one}
    rules |= {
        (one["kind"], one["metadata"]["name"]): one["rules"] for one in _documents("accounts.yaml") if "rules" in one
    }
    return [
        Right(verb, group, resource, binding["roleRef"]["kind"] == "ClusterRole")
        for binding in _documents("accounts.yaml")
        if "roleRef" in binding and any(subject["name"] in wanted for subject in binding["subjects"])
        for rule in rules[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    ]


def accounts_of(roles: Iterable[str]) -> list[str]:
    """Return the service accounts that the manifests have for roles, as ``NAMESPACE/NAME``."""
    wanted = {f"gpubus-{role}" for role in roles}
    meta = [one["metadata"] for one in _documents("accounts.yaml") if one["kind"] == "ServiceAccount"]
    return sorted(f"{one['namespace']}/{one['name']}" for one in meta if one["name"] in wanted)


def _documents(file: str) -> Iterable[dict[str, Any]]:
    return yaml.safe_load_all((RBAC / file).read_text())


async def rights(client: Client, namespace: str, release: str) -> list[Finding]:
    """Judge whether the account of each group may do what its roles do."""
    path = resource_path("apps/v1", "deployments", namespace)
    query = {"labelSelector": f"app.kubernetes.io/instance={release},app.kubernetes.io/name=gpubus"}
    deployments = json.loads(await client.call("GET", path, query=query))["items"]
    found = []
    for deployment in deployments:
        spec = deployment["spec"]["template"]["spec"]
        account = f"system:serviceaccount:{namespace}:{spec['serviceAccountName']}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        asked = {"user": account, "groups": groups}
        needed = rights_of(role for role in roles_of(spec) if role != "gateway")
        lacks = [one.text for one in needed if not await _may(client, "subjectaccessreviews", asked, one, namespace)]
        check = f"cluster/rights/{deployment['metadata']['name']}"
        if lacks:
            says = f"{account} may not {', '.join(lacks)}"
            found.append(Finding(check=check, severity="critical", says=says, fix=FIX))
        else:
            found.append(good(check, f"{account} may do what its roles do"))
    return found


def roles_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the roles that the containers of a pod play."""
    roles: list[str] = []
    for container in spec["containers"]:
        arguments = container.get("args") or []
        if "run" in arguments:
            play, *rest = arguments[arguments.index("run") + 1 :]
            roles += rest[0].split(",") if play == "group" else [play]
    return roles


async def lacks_ourselves(client: Client, roles: Iterable[str], namespace: str) -> list[Finding]:
    """Ask the API server whether the account that we use ourselves may do what ``roles`` do."""
    needed = rights_of(roles)
    lacks = [one.text for one in needed if not await _may(client, "selfsubjectaccessreviews", {}, one, namespace)]
    check = "cluster/own-rights"
    if not lacks:
        return [good(check, f"this account may do what {', '.join(roles)} do")]
    fix = "bind the roles of deploy/rbac to this account"
    return [Finding(check=check, severity="critical", says=f"this account may not {', '.join(lacks)}", fix=fix)]


async def _may(client: Client, review: str, whom: Mapping[str, Any], right: Right, namespace: str) -> bool:
    plural, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": plural, "subresource": part}
    if not right.everywhere:
        attributes["namespace"] = namespace
    kinds = {"subjectaccessreviews": "SubjectAccessReview", "selfsubjectaccessreviews": "SelfSubjectAccessReview"}
    body = {"apiVersion": REVIEWS, "kind": kinds[review], "spec": {**whom, "resourceAttributes": attributes}}
    answer = await client.call("POST", resource_path(REVIEWS, review), body=json.dumps(body).encode())
    return bool(json.loads(answer)["status"]["allowed"])
