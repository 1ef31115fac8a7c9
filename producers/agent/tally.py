"""How often pods were held back, and gave up and took back their VRAM, counted from one sample to the next. No I/O, no clock.

No limiter tells what it does, so what counts is what can be seen from outside:

* *throttled*: a sample in which one of a pod's containers used all the compute that its limit allows. NVML's process utilisation
  is what limiters steer by. Where it says nothing of a limit (MIG devices, MPS, pods without a limit below the whole GPU) nothing
  is counted.
* *frozen*: a process that held VRAM is off the GPU for :data:`PATIENCE` samples and lives on, as under ``cuda-checkpoint``.
  *resumed*: that process is back.

Counts are those of a pod on one GPU, and only grow: a container without a process at the moment takes none of them away, and
:meth:`Tally.restore` takes them over a restart of the agent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from producers.agent.cgroups import Owner
from producers.agent.drift import PATIENCE
from producers.agent.source import Reading
from schemas.cluster import GpuDevice
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

FULL: Final = 100.0
AT_LIMIT: Final = 0.95
"""Part of its limit from which on a container counts as using all of it: utilisation is told in whole percent."""

_UNLIMITED: Final = ("shared", "partitioned")


def compute_limit(request: GpuRequest | None, container: str, device: GpuDevice | None) -> float | None:
    """Return what a container may use of a GPU's compute, in percent; None where nothing below the whole GPU bounds it."""
    if request is None or device is None or device.mode != "hami-core" or request.isolation in _UNLIMITED:
        return None
    if request.dialect == "hami":
        share = next((part.compute_milli for part in request.containers if part.name == container), None)
        percent = (request.compute_milli if share is None else share) / 10
    elif request.tflops_limit_milli:
        percent = FULL * request.tflops_limit_milli / device.tflops_milli if device.tflops_milli else 0.0
    else:
        percent = request.compute_limit_milli / 10
    return percent if 0 < percent < FULL else None


class _Counts(msgspec.Struct):
    """A pod on one GPU. Processes are known by number and start time; ``missed`` counts samples that did not show one."""

    throttled: int | None = None
    frozen: int | None = None
    resumed: int | None = None
    on: dict[int, str] = {}
    off: dict[int, str] = {}
    missed: dict[int, int] = {}


_Key = tuple[str, str]
"""UID of a pod and UUID of a GPU."""


class Tally:
    """The counts of the pods that hold something on this node.

    Args:
        owner: Whose a process is.
        started: When a process was started, by whatever tells two of one number apart; empty when it is gone.
    """

    def __init__(self, owner: Callable[[int], Owner], started: Callable[[int], str]) -> None:
        self._owner = owner
        self._started = started
        self._counts: dict[_Key, _Counts] = {}

    def restore(self, said: NodeUsage) -> None:
        """Go on from what an earlier process said last."""
        for gpu in said.gpus:
            for process in gpu.processes:
                if process.pod_uid and not process.foreign:
                    self._counts[process.pod_uid, gpu.uuid] = _Counts(
                        process.throttled_count, process.vram_frozen_count, process.vram_resumed_count
                    )

    def count(
        self,
        usage: NodeUsage,
        readings: Iterable[Reading],
        held: Mapping[str, Allocation],
        limit: Callable[[str, str, str], float | None],
    ) -> NodeUsage:
        """Take in one sample and return it with the counts.

        A pod all of whose processes are frozen has an entry without VRAM and processes.

        Args:
            usage: The sample.
            readings: What it was made from, one for each of its GPUs.
            held: The ledger's record of the node, by pod UID.
            limit: What a container may use of a GPU, by pod UID, container and UUID: see :func:`compute_limit`.
        """
        self._counts = {key: counts for key, counts in self._counts.items() if key[0] in held}
        gpus = []
        for gpu, reading in zip(usage.gpus, readings, strict=True):
            if not gpu.absent:
                self._follow(gpu.uuid, reading, held)
                self._hold_back(gpu, held, limit)
            gpus.append(msgspec.structs.replace(gpu, processes=(*self._told(gpu), *self._frozen(gpu, held))))
        return msgspec.structs.replace(usage, gpus=tuple(gpus))

    def _follow(self, uuid: str, reading: Reading, held: Mapping[str, Allocation]) -> None:
        """Note which processes have come, gone and come back."""
        shown: dict[str, set[int]] = {}
        for process in reading.processes:
            if process.pid and (uid := self._owner(process.pid).pod_uid) in held:
                shown.setdefault(uid, set()).add(process.pid)
        for uid, pids in shown.items():
            counts = self._counts.setdefault((uid, uuid), _Counts())
            counts.frozen, counts.resumed = counts.frozen or 0, counts.resumed or 0
            for pid in pids - counts.on.keys():
                started = self._started(pid)
                if started and counts.off.pop(pid, "") == started:
                    counts.resumed += 1
                counts.on[pid] = started
        for (uid, gpu), counts in self._counts.items():
            if gpu == uuid:
                self._miss(counts, shown.get(uid, set()))

    def _miss(self, counts: _Counts, shown: set[int]) -> None:
        counts.missed = {pid: counts.missed.get(pid, 0) + 1 for pid in counts.on.keys() - shown}
        for pid, times in counts.missed.items():
            if self._started(pid) != counts.on[pid]:
                del counts.on[pid]
            elif times >= PATIENCE:  # one sample may miss a process that is there
                counts.off[pid] = counts.on.pop(pid)
                counts.frozen = (counts.frozen or 0) + 1
        counts.off = {pid: started for pid, started in counts.off.items() if self._started(pid) == started}

    def _hold_back(
        self, gpu: GpuSample, held: Mapping[str, Allocation], limit: Callable[[str, str, str], float | None]
    ) -> None:
        at_limit: dict[str, bool] = {}
        for process in gpu.processes:
            uid = process.pod_uid
            most = limit(uid, process.container, gpu.uuid) if uid in held and not process.instance else None
            if most is not None:
                at_limit[uid] = at_limit.get(uid, False) or process.sm_percent >= AT_LIMIT * most
        for uid, reached in at_limit.items():
            counts = self._counts.setdefault((uid, gpu.uuid), _Counts())
            counts.throttled = (counts.throttled or 0) + reached

    def _told(self, gpu: GpuSample) -> Iterator[ProcessUsage]:
        for process in gpu.processes:
            counts = self._counts.get((process.pod_uid, gpu.uuid))
            yield process if counts is None else _with(process, counts)

    def _frozen(self, gpu: GpuSample, held: Mapping[str, Allocation]) -> Iterator[ProcessUsage]:
        shown = {process.pod_uid for process in gpu.processes}
        for (uid, uuid), counts in self._counts.items():
            granted = any(grant.uuid == uuid for grant in held[uid].gpus)
            if uuid == gpu.uuid and counts.off and uid not in shown and granted and not gpu.absent:
                yield _with(ProcessUsage(pod_uid=uid), counts)


def _with(process: ProcessUsage, counts: _Counts) -> ProcessUsage:
    return msgspec.structs.replace(
        process,
        throttled_count=counts.throttled,
        vram_frozen_count=counts.frozen,
        vram_resumed_count=counts.resumed,
    )
