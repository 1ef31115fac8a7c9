"""The Eviction API: pods leave as their disruption budgets allow. Each call can be repeated."""

from typing import Final, Literal

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, TOO_MANY_REQUESTS, KubeRefusedError
from schemas.kube.core import KubePod

_pod: Final = msgspec.json.Decoder(KubePod)


class Evicted(msgspec.Struct, frozen=True):
    """What became of an eviction: ``blocked`` for as long as ``message`` says why."""

    outcome: Literal["done", "gone", "blocked"]
    message: str = ""


async def read_pod(client: Client, namespace: str, name: str) -> KubePod | None:
    """Return a pod as it is now, or None if there is none of that name.

    Raises:
        KubeError: The API server refuses, or does not answer.
    """
    found = await client.find(resource_path("v1", "pods", namespace, name))
    return _pod.decode(found) if found is not None else None


async def evict(client: Client, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> Evicted:
    """Evict exactly this pod, or only ask whether it may be.

    Raises:
        KubeError: The API server refuses for another reason than a budget, or does not answer.
    """
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}, **({"dryRun": ["All"]} if dry_run else {})},
    }
    path = resource_path("v1", "pods", namespace, name, "eviction")
    try:
        await client.call("POST", path, body=msgspec.json.encode(eviction))
    except KubeRefusedError as error:
        if error.code == NOT_FOUND:
            return Evicted("gone")
        if error.code == TOO_MANY_REQUESTS:
            return Evicted("blocked", " ".join(error.causes) or error.message)
        if error.code == CONFLICT:
            pod = await read_pod(client, namespace, name)
            if pod is None or pod.metadata.uid != uid:
                return Evicted("gone")
            return Evicted("blocked", error.message)
        raise
    return Evicted("done")
