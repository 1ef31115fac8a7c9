"""Pods that their controllers make anew once they are gone: evicted, so that disruption budgets hold."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from bus.kube import eviction
from bus.kube.client import Client, resource_path
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
    if request.keep:
        pod = await eviction.read_pod(client, namespace, name)
        stands = pod is not None and pod.metadata.uid == request.uid and not pod.metadata.deletion_timestamp
        return Replaced(outcome="kept") if stands else GONE
    return await evict(client, namespace, name, request.uid)


async def replace_worker(client: Client, request: Replace) -> Replaced:
    """Evict pods of a workload that are not made from the template, as many as may be down now; others are made for them.

    Raises:
        KubeError: As for :func:`replace_client`.
    """
    namespace, _, workload = request.name.partition("/")
    query = {"labelSelector": f"{COMPONENT}=worker,{WORKLOAD}={workload}"}
    pods = _pods.decode(await client.call("GET", resource_path("v1", "pods", namespace), query=query)).items
    theirs = [pod for pod in pods if request.uid in {owner.uid for owner in pod.metadata.owner_references}]
    if (stands := asked_after(theirs, request)) is not None:
        return stands
    now, later = choose_workers(theirs, request)
    answers = await asyncio.gather(*(evict(client, namespace, pod.metadata.name, pod.metadata.uid) for pod in now))
    done = sum(answer.outcome == "done" for answer in answers)
    blocked = next((answer for answer in answers if answer.outcome == "blocked"), None)
    if blocked is not None:
        return Replaced(outcome="blocked", message=blocked.message, pods=done)
    if later:
        text = f"{len(later)} of {len(theirs)} pods wait for the others to be ready"
        return Replaced(outcome="part", message=text, pods=done, up=sum(map(_is_up, theirs)))
    return Replaced(outcome="done", pods=done) if now else GONE


def choose_workers(pods: Iterable[KubePod], request: Replace) -> tuple[list[KubePod], list[KubePod]]:
    """Return which of a workload's pods to evict now, and which later. Pure.

    Those that are down take nothing away and go at once; of the others as many as may be down, the oldest first. Who was
    evicted and has no successor yet is counted by being missed. Of a workload that is only asked after nobody who is up goes:
    what it misses may not be our doing. Whom pods hide that ``up`` does not count would not be missed,
    so while more are up than that nobody who is up goes. As long as ``first`` is asked for and none has come up with the
    template, one alone is tried: if one is down already by an earlier template, one that was made for it.
    """
    pods = list(pods)
    current = [pod for pod in pods if pod.metadata.labels.get(TEMPLATE_HASH) == request.hash]
    outdated = [pod for pod in pods if pod not in current and not pod.metadata.deletion_timestamp]
    outdated.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
    up = [pod for pod in outdated if _is_up(pod)]
    proven = sum(map(_is_up, current))
    alone = request.first and not proven
    down = request.up - len(up) - proven
    room = 0 if down < 0 or request.keep else max((1 if alone else request.at_once) - down, 0)
    chosen = [pod for pod in outdated if pod not in up] + up[:room]
    if alone:  # a pod that is ready, for one that was down before would prove nothing
        one = up[:1] if up and room else _made_since(request, outdated)[:1] or ([] if up else outdated[:1])
        chosen = [] if current else one
    return chosen, [pod for pod in outdated if pod not in chosen]


def asked_after(pods: Iterable[KubePod], request: Replace) -> Replaced | None:
    """Return what to say of a workload that is only asked after, or None if its pods are to be replaced. Pure.

    Of one whose pods are all up none is replaced: that would take it down. Of one that misses some those that are down may go.
    Where nothing is out of date, those that are missed are awaited, for what is seen of it elsewhere may be old.
    """
    pods = list(pods)
    up = sum(map(_is_up, pods))
    outdated = any(
        pod.metadata.labels.get(TEMPLATE_HASH) != request.hash for pod in pods if not pod.metadata.deletion_timestamp
    )
    if not outdated and up < request.up:
        return Replaced(outcome="part", message=f"{request.up - up} pods are yet to be ready", up=up)
    return Replaced(outcome="kept", up=up) if request.keep and outdated and up >= request.up else None


def _made_since(request: Replace, pods: Iterable[KubePod]) -> list[KubePod]:
    """Return the pods that are down and were made when pods were replaced already, the youngest first."""
    if request.since is None:
        return []
    since = request.since.replace(microsecond=0)  # an API server tells whole seconds
    young = [pod for pod in pods if not _is_up(pod) and (made := pod.metadata.created_at) is not None and made >= since]
    return sorted(young, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), reverse=True)


def _is_up(pod: KubePod) -> bool:
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    return ready and not pod.metadata.deletion_timestamp


async def evict(client: Client, namespace: str, name: str, uid: str) -> Replaced:
    """Evict exactly this pod.

    Raises:
        KubeError: As for :func:`replace_client`.
    """
    answer = await eviction.evict(client, namespace, name, uid)
    return Replaced(outcome=answer.outcome, message=answer.message)
