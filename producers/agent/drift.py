"""Where a node differs from its ledger record, and which GPUs others use. No I/O, no clock.

What processes show counts when two samples in a row show it, and is over when two do not: a process between two states is
no news. What the kubelet tells counts at once.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from schemas.ledger import Allocation
from schemas.observed import Drift, DriftKind
from schemas.usage import NodeUsage

PATIENCE: Final = 2
"""Samples in a row."""

HOST: Final = "processes of the host"


class HandedOut(NamedTuple):
    """A device that the kubelet says a container has got from a device plugin or a DRA driver.

    Attributes:
        by: Name of the allocator, such as ``nvidia-device-plugin``.
        gpu: UUID of the GPU.
    """

    namespace: str
    pod: str
    container: str
    by: str
    gpu: str


class Verdict(NamedTuple):
    """What follows from one look.

    Attributes:
        used_by: Who uses a GPU beside the ledger, by GPU.
        news: Differences that have begun or ended.
    """

    used_by: dict[str, str]
    news: tuple[Drift, ...]


class _Key(NamedTuple):
    kind: DriftKind
    gpu: str
    pod_uid: str


class _Values(NamedTuple):
    ledger: str
    observed: str
    by: str = ""


class Watch:
    """Compares look after look.

    Args:
        node: Name of the node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._seen: dict[_Key, int] = {}
        self._missed: dict[_Key, int] = {}
        self._told: dict[_Key, _Values] = {}

    def look(
        self,
        usage: NodeUsage,
        allocations: Mapping[str, Allocation],
        handed_out: Iterable[HandedOut],
        at: datetime,
        *,
        known: Mapping[str, str],
        limits: Mapping[str, int],
    ) -> Verdict:
        """Compare one sample with the ledger.

        Args:
            usage: The sample.
            allocations: The ledger's record of the node, by pod UID.
            handed_out: What the kubelet says other allocators have given out.
            at: When.
            known: Names for people of GPUs that exist, by UUID.
            limits: VRAM limit of a pod on each GPU, where it states one, by pod UID.
        """
        certain = dict(_certain(allocations, handed_out, known))
        foreign = {key.gpu for key in certain if key.kind == "ForeignAllocation"}
        shown = {
            key: values
            for key, values in _shown(usage, allocations, limits)
            if not (key.kind == "UnmanagedUse" and key.gpu in foreign)  # whoever gave the GPU out explains it
        }
        now: dict[_Key, _Values] = dict(certain)
        self._seen = {key: self._seen.get(key, 0) + 1 for key in shown}
        now |= {key: shown[key] for key, times in self._seen.items() if key in self._told or times >= PATIENCE}
        self._missed = {key: self._missed.get(key, 0) + 1 for key in self._told if key not in now}
        for key, values in self._told.items():
            if key not in now and key.kind in _PATIENT and self._missed[key] < PATIENCE:
                now[key] = values
        news = [self._drift(key, values, at) for key, values in now.items() if key not in self._told]
        news += [self._drift(key, values, at, resolved=True) for key, values in self._told.items() if key not in now]
        self._told = now
        used_by = {key.gpu: values.by for key, values in sorted(now.items(), reverse=True) if values.by}
        return Verdict(used_by, tuple(news))

    def _drift(self, key: _Key, values: _Values, at: datetime, *, resolved: bool = False) -> Drift:
        return Drift(
            node=self._node,
            kind=key.kind,
            gpu=key.gpu,
            pod_uid=key.pod_uid,
            ledger=values.ledger,
            observed=values.observed,
            at=at,
            resolved=resolved,
        )


_PATIENT: Final[frozenset[DriftKind]] = frozenset({"UnmanagedUse", "WrongGpu", "OverLimit"})


def _certain(
    allocations: Mapping[str, Allocation], handed_out: Iterable[HandedOut], known: Mapping[str, str]
) -> Iterable[tuple[_Key, _Values]]:
    ours = {(allocation.namespace, allocation.name) for allocation in allocations.values()}
    holders: dict[str, list[str]] = {}
    for uid, allocation in allocations.items():
        for grant in allocation.gpus:
            holders.setdefault(grant.uuid, []).append(f"{allocation.namespace}/{allocation.name}")
            if grant.uuid not in known:
                words = f"pod {allocation.namespace}/{allocation.name} holds it"
                yield _Key("MissingGpu", grant.uuid, uid), _Values(words, "the node has no such GPU")
    for device in handed_out:
        if (device.namespace, device.pod) in ours:
            continue  # it is in the ledger, and both mean the same pod
        pods = holders.get(device.gpu)
        ledger = f"pods {', '.join(sorted(pods))} hold it" if pods else "nobody holds it"
        observed = f"{device.by} gave it to pod {device.namespace}/{device.pod}, container {device.container}"
        yield _Key("ForeignAllocation", device.gpu, ""), _Values(ledger, observed, device.by)


def _shown(
    usage: NodeUsage, allocations: Mapping[str, Allocation], limits: Mapping[str, int]
) -> Iterable[tuple[_Key, _Values]]:
    for gpu in usage.gpus:
        by_pod: dict[str, int] = {}
        for process in gpu.processes:
            by_pod[process.pod_uid] = by_pod.get(process.pod_uid, 0) + process.vram_bytes
        for uid, vram in by_pod.items():
            observed = f"{f'pod {uid}' if uid else HOST} use {vram} bytes of its VRAM"
            allocation = allocations.get(uid)
            if allocation is None:
                by = f"pod {uid}" if uid else HOST
                yield _Key("UnmanagedUse", gpu.uuid, uid), _Values("nothing is known of them", observed, by)
                continue
            granted = [grant.vram_bytes for grant in allocation.gpus if grant.uuid == gpu.uuid]
            if not granted:
                given = ", ".join(grant.uuid for grant in allocation.gpus) or "no GPU"
                words = f"pod {allocation.namespace}/{allocation.name} holds {given}"
                yield _Key("WrongGpu", gpu.uuid, uid), _Values(words, observed, f"pod {uid}")
            elif vram > (most := max(granted[0], limits.get(uid, 0))):
                yield _Key("OverLimit", gpu.uuid, uid), _Values(f"it may use {most} bytes", observed)
