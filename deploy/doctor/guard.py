"""Whether what binding and admission write on pods is kept from others: the policy, its binding, and whom it lets write."""

import json
from collections.abc import Mapping
from typing import Any, Final

from bus.kube.client import Client, resource_path
from deploy.doctor.findings import Finding, good
from deploy.doctor.parts import Parts
from deploy.doctor.rights import roles_of
from producers.gateway.guard import API, BY_OTHERS, WRITERS, guard

CHECK: Final = "cluster/guard"
FIX: Final = (
    "helm upgrade with the chart of this version, or: gpubus schema guard --name {name} --account NAMESPACE/NAME "
    "| kubectl apply -f -"
)


async def guard_findings(client: Client, parts: Parts, namespace: str, release: str) -> list[Finding]:
    """Read the policy and its binding, and judge them."""
    name = f"{release}-guard"
    there = [
        await client.find(resource_path(API, plural, name=name))
        for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    ]
    policy, binding = (None if one is None else json.loads(one) for one in there)
    return judge(name, policy, binding, writers(parts, namespace), passive=parts.passive)


def writers(parts: Parts, namespace: str) -> list[str]:
    """Return the users of an installation that must be let write: those of the parts that bind or resize pods."""
    specs = [one["spec"]["template"]["spec"] for one in parts.workloads if one.get("kind") == "Deployment"]
    return sorted(
        f"system:serviceaccount:{namespace}:{spec['serviceAccountName']}"
        for spec in specs
        if set(WRITERS) & set(roles_of(spec))
    )


def judge(
    name: str,
    policy: Mapping[str, Any] | None,
    binding: Mapping[str, Any] | None,
    users: list[str],
    *,
    passive: bool,
) -> list[Finding]:
    """Judge the policy and its binding, as the API server has them.

    Args:
        name: What both are called.
        policy: The policy; None if it is not there.
        binding: Its binding; None if it is not there.
        users: Who must be let write.
        passive: Whether the installation only watches, and binds nothing.
    """
    if passive and policy is None:
        return []
    fix = FIX.format(name=name)
    open_says = "who may patch a pod can give it the GPUs of others"
    if policy is None or binding is None:
        kind = "ValidatingAdmissionPolicy" if policy is None else "ValidatingAdmissionPolicyBinding"
        return [Finding(check=CHECK, severity="critical", says=f"there is no {kind} {name}: {open_says}", fix=fix)]
    says = _loose(name, policy["spec"], binding["spec"])
    if says:
        return [Finding(check=CHECK, severity="critical", says=f"{says}: {open_says}", fix=fix)]
    conditions = {one["name"]: one["expression"] for one in policy["spec"].get("matchConditions", ())}
    shut_out = [user for user in users if f"'{user}'" not in conditions.get(BY_OTHERS, "")]
    if shut_out:
        says = f"the policy does not let {', '.join(shut_out)} write: bindings or resizes are refused"
        return [Finding(check=CHECK, severity="critical", says=says, fix=fix)]
    if _judged(policy["spec"]) != _judged(guard(name, ["anybody"])[0]["spec"]):
        return [Finding(check=CHECK, severity="warning", says="the policy is that of another version", fix=fix)]
    return [good(CHECK, "what binding and admission write on pods is kept from others")]


def _judged(policy: Mapping[str, Any]) -> list[object]:
    """Return what a policy judges, and how, whoever it lets write."""
    conditions = [one for one in policy.get("matchConditions", ()) if one["name"] != BY_OTHERS]
    rules = [(one["operations"], one["resources"]) for one in policy["matchConstraints"]["resourceRules"]]
    return [rules, conditions, policy.get("variables"), [one["expression"] for one in policy["validations"]]]


def _loose(name: str, policy: Mapping[str, Any], binding: Mapping[str, Any]) -> str:
    """Return what makes them let others through; empty if nothing does."""
    if policy.get("failurePolicy", "Fail") != "Fail":
        return "failurePolicy of the policy is not Fail"
    if binding.get("policyName") != name or "Deny" not in binding.get("validationActions", ()):
        return "the binding does not deny by this policy"
    if binding.get("matchResources") and binding["matchResources"] != {"matchPolicy": "Equivalent"}:
        return "the binding leaves pods out by matchResources"
    return ""
