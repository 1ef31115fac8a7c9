"""The ValidatingAdmissionPolicy that keeps what binding and admission write on pods from everybody else.

Containers take their GPUs and limits from annotations through the downward API, so whoever may change a pod could give its next
start the GPUs of others, and admission sees pods once, when they are created. The API server judges this by itself, in CEL:
no part of ours has to answer. Source of the form: ``admissionregistration.k8s.io/v1``, since Kubernetes 1.30.

Closed to all accounts but those of :data:`WRITERS` is every key that begins with :data:`PREFIX`. Keys of the two contracts that
we write are closed on pods that have one of ours, so what another product does with its own pods is its own affair. What users
say stays theirs: amounts, QoS, protection from eviction and so on may be changed as before.
"""

from collections.abc import Sequence
from typing import Any, Final

from schemas.dialects import tf_keys as keys
from schemas.kube.annotations import CONTAINER_GPUS, EFFECTIVE_SM_PERCENT, GPU_IDS, VGPU_NODE
from schemas.kube.components import TEMPLATE_HASH

API: Final = "admissionregistration.k8s.io/v1"
PREFIX: Final = "gpubus.io/"
WRITERS: Final = ("binder", "scaler")
"""Roles that change what is closed: one binds pods, the other resizes those that run."""

BY_OTHERS: Final = "by-others"
"""Name of the condition that leaves out requests of those who may."""

ANNOTATIONS: Final = (
    CONTAINER_GPUS, EFFECTIVE_SM_PERCENT, GPU_IDS, keys.PORT_NUMBER, keys.SELECTED_WORKLOAD, VGPU_NODE,
)  # fmt: skip
"""Annotations of the contracts that binding and admission write, and no user does."""

LABELS: Final = (keys.COMPONENT, TEMPLATE_HASH, keys.WORKLOAD)
"""Labels of the contracts that admission writes, and no user does."""

_FIX: Final = (
    "only gpubus writes what binding and admission say of a pod: leave it as it is, and to have other GPUs "
    "delete the pod and create it again"
)


def guard(name: str, accounts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy and its binding as objects for the API server.

    Args:
        name: Name of both.
        accounts: Who may write what is closed, such as ``system:serviceaccount:gpubus-system:gpubus-controller``: the accounts of
            :data:`WRITERS`.

    Raises:
        ValueError: There is no account: no pod could be bound.
    """
    if not accounts:
        raise ValueError("say which accounts bind and resize pods: without one no pod could be bound")
    policy = {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": _rules()},
            "matchConditions": [
                {"name": BY_OTHERS, "expression": _by_others(accounts)},
                {"name": "ours", "expression": _marked("object", "oldObject")},
            ],
            "variables": [
                *(
                    {"name": f"{part}{when}", "expression": _map(whole, part)}
                    for part in ("annotations", "labels")
                    for when, whole in (("Before", "oldObject"), ("After", "object"))
                ),
                {"name": "ours", "expression": f"oldObject != null && ({_marked('oldObject')})"},
                {"name": "annotationsChanged", "expression": _changed("annotations", ANNOTATIONS)},
                {"name": "labelsChanged", "expression": _changed("labels", LABELS)},
            ],
            "validations": [_validation("annotations"), _validation("labels")],
        },
    }
    binding = {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return policy, binding


def _by_others(accounts: Sequence[str]) -> str:
    """Return the CEL expression that is true for requests of everybody but these accounts."""
    return f"!(request.userInfo.username in [{_list(accounts)}])"


def _rules() -> list[dict[str, Any]]:
    """Return what can change a pod's annotations: writes of it and of its parts, and the Binding that is merged into it."""
    parts = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    return [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": [operation],
            "resources": resources,
            "scope": "Namespaced",
        }
        for operation, resources in (("UPDATE", parts), ("CREATE", ["pods/binding"]))
    ]


def _marked(*wholes: str) -> str:
    """Return an expression that is true if one of the objects has a key of ours, and never fails."""
    return " || ".join(
        f"({whole} != null && has({whole}.metadata.{part}) && {whole}.metadata.{part}.exists(k, k.startsWith('{PREFIX}')))"
        for whole in wholes
        for part in ("annotations", "labels")
    )


def _map(whole: str, part: str) -> str:
    return f"{whole} != null && has({whole}.metadata.{part}) ? {whole}.metadata.{part} : {{}}"


def _changed(part: str, contracts: Sequence[str]) -> str:
    """Return an expression for the closed keys that are changed, taken away or added."""
    before, after = f"variables.{part}Before", f"variables.{part}After"
    mine = f"(k.startsWith('{PREFIX}') || (variables.ours && k in [{_list(contracts)}]))"
    return (
        f"{before}.filter(k, {mine} && !(k in {after} && {after}[k] == {before}[k])) + "
        f"{after}.filter(k, {mine} && !(k in {before}))"
    )


def _validation(part: str) -> dict[str, Any]:
    changed, kind = f"variables.{part}Changed", part.removesuffix("s")
    return {
        "expression": f"size({changed}) == 0",
        "messageExpression": f"'gpubus: {kind} ' + {changed}.join(', ') + ' may not be changed: {_FIX}'",
        "message": f"gpubus: {part} of a pod may not be changed: {_FIX}",
        "reason": "Forbidden",
    }


def _list(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
