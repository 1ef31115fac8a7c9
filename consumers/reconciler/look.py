"""One look at all sides: the ledger, the API server, and what the agents see."""

import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from bus import codec, history, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.kube.client import Client, resource_path
from bus.streams import CAPACITY, LEDGER, STATE, USAGE
from consumers.reconciler.compare import Difference, compare
from consumers.reconciler.sight import Sight
from schemas.cluster import GpuInventory
from schemas.kube.core import KubePod
from schemas.ledger import Allocation, NodeRecord
from schemas.observed import Drift
from schemas.pod import Pod, Waiting
from schemas.usage import NodeUsage

RECENT_S: Final = 60.0
"""Age below which a pod's commands may still be on the way."""

FRESH_S: Final = 30.0
"""Age up to which a sample tells what is now; agents take one every second."""

PAGE: Final = 500


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[KubePod] = []


_page = msgspec.json.Decoder(_Page)


Key = tuple[str, str, str, str]


def key_of(one: Drift | Difference) -> Key:
    """Return what makes two differences the same: node, kind, GPU and UID of the pod."""
    return one.node, one.kind, one.gpu, one.pod_uid if isinstance(one, Drift) else one.uid


class View(msgspec.Struct):
    """What was found.

    Attributes:
        differences: Where the sides differ.
        stored: Pods that STATE knows, by UID.
        pods: How many pods were compared.
        dark: Nodes that hold something and whose agents are not heard.
        told: What reconcilers have told and not taken back, by :func:`key_of`.
    """

    differences: list[Difference]
    stored: dict[str, Pod]
    pods: int = 0
    dark: list[str] = []
    told: dict[Key, Drift] = {}


async def look(bus: Bus, client: Client | None) -> View:
    """Compare all sides once; without ``client`` the API server is left out.

    The ledger is read first, and pods are listed at the end: see :mod:`consumers.reconciler.compare`.

    Raises:
        KubeError: The API server cannot say.
        UndecodableError: A ledger record cannot be read: nothing is concluded from half a view.
    """
    records = await read_ledger(bus)
    held = {one.pod_uid: (node, one) for node, (_, allocations) in records.items() for one in allocations}
    stored = await _state(bus, "gpubus.state.pod.*.*", Pod)
    waiting = await _state(bus, "gpubus.state.waiting.>", Waiting)
    usage = await _usage(bus)
    agents, ours = await _told(bus)
    sight = Sight(usage, await _inventories(bus), agents.values())
    pods = {pod.metadata.uid: pod async for pod in all_pods(client)} if client is not None else None
    found: list[Difference] = []
    if pods is not None:
        recent = frozenset(uid for uid, pod in pods.items() if _age_s(pod) < RECENT_S)
        found = compare(held, pods.values(), waiting=waiting, stored=stored, recent=recent)
        found = [_seen(one, sight) for one in found]
    heard = {sample.node for sample in usage}
    return View(
        differences=[*found, *sight.differences(held, pods)],
        stored=stored,
        pods=len(held.keys() | (pods or {}).keys()),
        dark=sorted({node for node, one in held.values() if one.gpus} - heard),
        told=ours,
    )


def _seen(one: Difference, sight: Sight) -> Difference:
    """Add what is seen of the pod. As long as its processes are, it is not safe to give to others what it holds."""
    busy = one.repair == "release" and sight.uses(one.uid, one.node)
    repair = "none" if busy else one.repair
    return msgspec.structs.replace(one, observed=sight.words(one.uid, one.node), repair=repair)


async def all_pods(client: Client) -> AsyncIterator[KubePod]:
    """Yield all pods of the cluster.

    Raises:
        KubeError: The API server cannot say.
    """
    query = {"limit": str(PAGE)}
    while True:
        page = _page.decode(await client.call("GET", resource_path("v1", "pods"), query=query, timeout=60.0))
        for pod in page.items:
            yield pod
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_


async def read_ledger(bus: Bus) -> dict[str, tuple[int, tuple[Allocation, ...]]]:
    """Return sequence and allocations of every node's record.

    Raises:
        UndecodableError: A record cannot be read.
    """
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.node.*"])
    return {
        subjects.names(record.subject)[-1]: (record.seq, codec.decode_as(NodeRecord, record.payload).data.allocations)
        for record in records
    }


async def _state(bus: Bus, subject: str, struct: type[Any]) -> dict[str, Any]:
    return {value.uid: value for value in await _newest(bus, STATE, subject, struct)}


async def _inventories(bus: Bus) -> list[GpuInventory]:
    return await _newest(bus, STATE, "gpubus.state.gpu.*", GpuInventory)


async def _usage(bus: Bus) -> list[NodeUsage]:
    return await _newest(bus, USAGE, "gpubus.usage.gpu.*", NodeUsage, since_ns=int((time.time() - FRESH_S) * 1e9))


async def _newest(bus: Bus, stream: str, subject: str, struct: type[Any], *, since_ns: int = 0) -> list[Any]:
    records, _ = await history.newest(bus, stream, [subject])
    found = []
    for record in records:
        if record.time_ns < since_ns:
            continue
        try:
            found.append(codec.decode_as(struct, record.payload).data)
        except UndecodableError:
            continue  # whoever folds the stream has reported it
    return found


async def _told(bus: Bus) -> tuple[dict[Key, Drift], dict[Key, Drift]]:
    """Return what was told of differences and not taken back: by agents, and by reconcilers, who say what the API server says."""
    agents: dict[Key, Drift] = {}
    ours: dict[Key, Drift] = {}

    def hear(record: Record) -> None:
        try:
            drift = codec.decode_as(Drift, record.payload).data
        except UndecodableError:
            return
        told = ours if drift.api else agents
        if drift.resolved:
            told.pop(key_of(drift), None)
        else:
            told[key_of(drift)] = drift

    await history.read(bus, CAPACITY, ["gpubus.drift.>"], hear)
    return agents, ours


def _age_s(pod: KubePod) -> float:
    created = pod.metadata.creation_timestamp
    return time.time() - datetime.fromisoformat(created).timestamp() if created else 0.0
