"""The MutatingWebhookConfiguration that sends us the pods that ask for GPUs, and no others.

``failurePolicy: Fail`` keeps a pod from slipping past us without an allocation; the conditions keep every other pod off our
path, so that an outage of ours stops nobody else. Source of the expressions' form: ``admissionregistration.k8s.io/v1``
matchConditions, in CEL. Every field is asked for before it is read: an expression that fails refuses the pod.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas.dialects import TensorFusionDefaults
from schemas.dialects.tf_keys import ASKING, ENABLED, OFF

NAME: Final = "mpod.gpubus.io"
PATH: Final = "/mutate-v1-pod"
IGNORE: Final = "hami.io/webhook"
HAMI: Final = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""Resources that ask in HAMi's words; the first of them is the native device plugin's as well."""


NATIVE: Final = tuple(name for name, _ in TensorFusionDefaults().native_resources)
"""Resources of native device plugins: pods with them come to us where automatic migration may mean them."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods are sent to us.

    Attributes:
        resources: Pods whose containers have a limit of one of these; empty for TensorFusion's words alone.
        beside: Pods whose containers have a limit of one of these are sent whatever else they say, so that they keep to nodes
            without GPUs of ours (progressive migration).
        excluded_namespaces: Namespaces whose pods are never sent: ours among them, or we could not start.
        namespace_labels: Labels that a namespace must have; empty for all.
    """

    resources: tuple[str, ...] = HAMI
    beside: tuple[str, ...] = ()
    excluded_namespaces: tuple[str, ...] = ("kube-system",)
    namespace_labels: dict[str, str] = {}


def webhook_configuration(
    name: str,
    *,
    ca_bundle: bytes,
    service: tuple[str, str] | None = None,
    url: str = "",
    reach: Reach,
    timeout_s: int = 10,
) -> dict[str, Any]:
    """Return the configuration as an object for the API server.

    Args:
        name: Name of the object.
        ca_bundle: PEM of who signed the gateway's certificate.
        service: Namespace and name of the gateway's Service.
        url: Where the gateway is, instead of ``service``, for one outside the cluster.
        reach: Which pods are sent.
        timeout_s: How long the API server waits, 1 to 30 seconds.

    Raises:
        ValueError: The timeout is out of bounds, or not exactly one of ``service`` and ``url`` is given.
    """
    if not 1 <= timeout_s <= 30:  # noqa: PLR2004  the API server's bounds
        raise ValueError(f"timeout is {timeout_s} s: the API server takes 1 to 30")
    if (service is None) == (not url):
        raise ValueError("say where the gateway is, by its Service or by its URL, and not both")
    where: dict[str, Any] = {"url": f"{url}{PATH}"}
    if service is not None:
        where = {"service": {"namespace": service[0], "name": service[1], "path": PATH, "port": 443}}
    excluded = {
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": sorted(reach.excluded_namespaces),
    }  # fmt: skip
    ignored = {"key": IGNORE, "operator": "NotIn", "values": ["ignore"]}
    expressions = [excluded, ignored] if reach.excluded_namespaces else [ignored]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": NAME,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": timeout_s,
                "clientConfig": {"caBundle": base64.b64encode(ca_bundle).decode(), **where},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "*",
                    }
                ],
                "namespaceSelector": {"matchLabels": reach.namespace_labels, "matchExpressions": expressions},
                "matchConditions": [{"name": "asks-for-gpus", "expression": condition(reach.resources, reach.beside)}],
            }
        ],
    }


def condition(resources: Sequence[str], beside: Sequence[str] = ()) -> str:
    """Return the CEL expression that is true for pods that ask for GPUs, and never fails.

    A pod labelled for HAMi's webhook to ignore asks in TensorFusion's words alone, or not at all.
    """
    labels = "has(object.metadata.labels)"
    annotations = "has(object.metadata.annotations)"
    label = f"'{ENABLED}' in object.metadata.labels"
    off = f"({labels} && {label} && object.metadata.labels['{ENABLED}'] in [{_list(OFF)}])"
    on = f"({labels} && {label})"
    asks = f"({annotations} && [{_list(ASKING)}].exists(key, key in object.metadata.annotations))"
    ignored = f"({labels} && '{IGNORE}' in object.metadata.labels && object.metadata.labels['{IGNORE}'] == 'ignore')"
    limits = [f"(!{ignored} && ({' || '.join(_limits(resources))}))"] if resources else []
    wants = f"!{off} && ({' || '.join([on, asks, *limits])})"
    return f"({wants}) || {' || '.join(_limits(beside))}" if beside else wants


def _limits(resources: Sequence[str]) -> list[str]:
    """Return expressions of which one is true for pods of which a container has some of one of these resources."""
    if not resources:
        return []

    def some(amounts: str) -> str:
        return f"r in c.resources.{amounts} && string(c.resources.{amounts}[r]) != '0'"

    within = (
        "has(c.resources) && ("
        f"(has(c.resources.limits) && [{_list(resources)}].exists(r, {some('limits')})) || "
        f"(has(c.resources.requests) && [{_list(resources)}].exists(r, {some('requests')})))"
    )
    return [
        f"object.spec.containers.exists(c, {within})",
        f"(has(object.spec.initContainers) && object.spec.initContainers.exists(c, {within}))",
    ]


def _list(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
