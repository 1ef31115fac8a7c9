"""What the binder does to pods in the API server: read, bind, mark as unschedulable."""

from typing import Final

import msgspec

from bus.kube.client import STRATEGIC, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from schemas.kube.annotations import allocation_annotations
from schemas.kube.core import KubePod
from schemas.ledger import Allocation

MESSAGE_LENGTH: Final = 1024

_pod = msgspec.json.Decoder(KubePod)


async def read(client: Client, namespace: str, name: str) -> KubePod | None:
    """Return the pod; None if there is none of that name.

    Raises:
        KubeError: The API server cannot say.
    """
    try:
        return _pod.decode(await client.call("GET", resource_path("v1", "pods", namespace, name)))
    except KubeRefusedError as error:
        if error.code == NOT_FOUND:
            return None
        raise


async def bind(client: Client, node: str, allocation: Allocation) -> None:
    """Bind the pod to ``node`` with its allocation, in one write that names the pod's UID.

    Raises:
        KubeRefusedError: It was not bound, at least not by this call.
        KubeUnreachableError: It may have been bound.
    """
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": allocation.name,
            "namespace": allocation.namespace,
            "uid": allocation.pod_uid,
            "annotations": allocation_annotations(node, allocation),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = resource_path("v1", "pods", allocation.namespace, allocation.name, "binding")
    await client.call("POST", path, body=msgspec.json.encode(binding), timeout=10.0)


async def mark_unschedulable(client: Client, pod: KubePod, message: str) -> bool:
    """Set the condition that cluster autoscalers and ``kubectl describe`` look at, if the pod is still as it was read.

    Returns:
        Whether it was set, or stood so already; False if the pod has changed meanwhile.

    Raises:
        KubeError: The API server refuses, or does not answer.
    """
    shown = message[:MESSAGE_LENGTH]
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.message == shown:
            return True
    patch = {
        "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": shown}]
        },
    }
    path = resource_path("v1", "pods", pod.metadata.namespace, pod.metadata.name, "status")
    try:
        await client.call("PATCH", path, body=msgspec.json.encode(patch), content_type=STRATEGIC)
    except KubeRefusedError as error:
        if error.code in (CONFLICT, NOT_FOUND):
            return False
        raise
    return True
