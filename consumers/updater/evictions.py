"""Pods that their controllers make anew once they are gone: evicted, so that disruption budgets hold."""

import asyncio
from typing import Final

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, TOO_MANY_REQUESTS, KubeRefusedError
from consumers.updater.agents import read_pod
from schemas.kube.components import COMPONENT, TEMPLATE_HASH, WORKLOAD
from schemas.kube.core import KubePod
from schemas.rollout import Replace, Replaced

GONE: Final = Replaced(outcome="gone")


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


_pods = msgspec.json.Decoder(_Pods)


async def replace_client(client: Client, request: Replace) -> Replaced:
    """Evict a client's pod; its controller makes another, which takes the template at admission.

    Raises:
        KubeError: The API server refuses for another reason than a budget, or does not answer.
    """
    namespace, _, name = request.name.partition("/")
    return await evict(client, namespace, name, request.uid)


async def replace_worker(client: Client, request: Replace) -> Replaced:
    """Evict the pods of a workload that are not made from the template; its controller makes others.

    Raises:
        KubeError: As for :func:`replace_client`.
    """
    namespace, _, workload = request.name.partition("/")
    query = {"labelSelector": f"{COMPONENT}=worker,{WORKLOAD}={workload}"}
    pods = _pods.decode(await client.call("GET", resource_path("v1", "pods", namespace), query=query)).items
    theirs = [pod for pod in pods if request.uid in {owner.uid for owner in pod.metadata.owner_references}]
    outdated = [pod for pod in theirs if pod.metadata.labels.get(TEMPLATE_HASH) != request.hash]
    answers = await asyncio.gather(*(evict(client, namespace, pod.metadata.name, pod.metadata.uid) for pod in outdated))
    blocked = [answer for answer in answers if answer.outcome == "blocked"]
    if blocked:
        return blocked[0]
    return Replaced(outcome="done") if outdated else GONE


async def evict(client: Client, namespace: str, name: str, uid: str) -> Replaced:
    """Evict exactly this pod.

    Raises:
        KubeError: As for :func:`replace_client`.
    """
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    path = resource_path("v1", "pods", namespace, name, "eviction")
    try:
        await client.call("POST", path, body=msgspec.json.encode(eviction))
    except KubeRefusedError as error:
        if error.code == NOT_FOUND:
            return GONE
        if error.code == TOO_MANY_REQUESTS:
            return Replaced(outcome="blocked", message=" ".join(error.causes) or error.message)
        if error.code == CONFLICT:
            pod = await read_pod(client, namespace, name)
            if pod is None or pod.metadata.uid != uid:
                return GONE
            return Replaced(outcome="blocked", message=error.message)
        raise
    return Replaced(outcome="done")
