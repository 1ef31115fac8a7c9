"""Agents of nodes as pods: made from a pool's template, removed and made again. Each call can be repeated."""

import asyncio
import hashlib
from typing import Any, Final

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from bus.kube.eviction import read_pod
from schemas.kube.components import COMPONENT, ISOLATION, POOL, TEMPLATE_HASH
from schemas.kube.core import KubePod
from schemas.rollout import Replace, Replaced

GONE_S: Final = 15.0
"""How long a removed agent may take to be gone, until its replacement is left to a later try."""

_LONGEST_NAME: Final = 63
_POLL_S: Final = (0.05, 1.0)

_pod = msgspec.json.Decoder(KubePod)


def agent_name(node: str) -> str:
    """Return the name of a node's agent: ``hypervisor-<node>``, shortened to what fits a host name.

    Source: upstream's naming of hypervisor pods.
    """
    name = f"hypervisor-{node}"
    if len(name) <= _LONGEST_NAME:
        return name
    ending = hashlib.blake2b(node.encode(), digest_size=4).hexdigest()
    return f"{name[: _LONGEST_NAME - len(ending) - 1].rstrip('-.')}-{ending}"


def agent_pod(request: Replace, namespace: str) -> dict[str, Any]:
    """Return the pod of a node's agent as it is to be created."""
    metadata = request.template.rendered.get("metadata", {})
    labels = {COMPONENT: "hypervisor", POOL: request.pool, TEMPLATE_HASH: request.hash}
    annotations = {ISOLATION: request.isolation} if request.isolation else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": agent_name(request.name),
            "namespace": namespace,
            "labels": {**metadata.get("labels", {}), **labels},
            "annotations": {**metadata.get("annotations", {}), **annotations},
        },
        "spec": {**request.template.rendered["spec"], "nodeName": request.name},
    }


async def replace_agent(client: Client, request: Replace, namespace: str) -> Replaced:
    """Remove the agent of that UID, if it is still there, and make another.

    Raises:
        KubeError: The API server refuses, or does not answer.
    """
    name = agent_name(request.name)
    pod = await read_pod(client, namespace, name)
    if pod is not None:
        if pod.metadata.uid != request.uid:
            return Replaced(outcome="gone")
        if request.keep and not pod.metadata.deletion_timestamp:
            return Replaced(outcome="kept")
        await delete_pod(client, pod)
        if not await _gone(client, pod):
            return Replaced(outcome="blocked", message=f"pod {namespace}/{name} is still ending", unsure=True)
    return await make_agent(client, request, namespace)


async def make_agent(client: Client, request: Replace, namespace: str) -> Replaced:
    """Make a node's agent, unless there is one.

    Raises:
        KubeError: The API server refuses, or does not answer.
    """
    body = msgspec.json.encode(agent_pod(request, namespace))
    try:
        await client.call("POST", resource_path("v1", "pods", namespace), body=body)
    except KubeRefusedError as error:
        if error.code == CONFLICT:
            return Replaced(outcome="gone")
        raise
    return Replaced(outcome="done")


async def delete_pod(client: Client, pod: KubePod) -> None:
    """Delete exactly this pod; one that is gone or has been replaced is as good as deleted.

    Raises:
        KubeError: The API server refuses, or does not answer.
    """
    meta = pod.metadata
    body = msgspec.json.encode({"preconditions": {"uid": meta.uid}})
    try:
        await client.call("DELETE", resource_path("v1", "pods", meta.namespace, meta.name), body=body)
    except KubeRefusedError as error:
        if error.code not in (NOT_FOUND, CONFLICT):
            raise


async def _gone(client: Client, pod: KubePod) -> bool:
    deadline = asyncio.get_running_loop().time() + GONE_S
    pause, longest = _POLL_S
    while True:
        found = await read_pod(client, pod.metadata.namespace, pod.metadata.name)
        if found is None or found.metadata.uid != pod.metadata.uid:
            return True
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)
