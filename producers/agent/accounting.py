"""From readings and owners to what is published: use per container, and use that nobody was given. No I/O, no clock."""

from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from producers.agent.cgroups import Owner
from producers.agent.source import Process, Reading
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

FULL: Final = 100.0


class Books:
    """Answers the questions that attribution asks.

    Args:
        owner: Pod and container of a process.
        container_name: Name of a container by its ID; empty while it is unknown.
        harmless: Whether a process of the host is one that shares a GPU with anybody, such as a monitor.
    """

    def __init__(
        self,
        owner: Callable[[int], Owner],
        container_name: Callable[[str], str],
        harmless: Callable[[int], bool],
    ) -> None:
        self.owner = owner
        self.container_name = container_name
        self.harmless = harmless


def account(
    node: str, readings: Iterable[Reading], at: datetime, *, books: Books, managed: Container[str]
) -> NodeUsage:
    """Return one message about all GPUs that answered.

    Args:
        node: Name of the node.
        readings: One per GPU.
        at: When they were taken.
        books: Whose processes are.
        managed: UIDs of the pods that hold something on this node by the ledger.
    """
    return NodeUsage(
        node=node,
        at=at,
        gpus=tuple(_with_processes(reading, books, managed) for reading in readings),
    )


def _with_processes(reading: Reading, books: Books, managed: Container[str]) -> GpuSample:
    groups: dict[tuple[str, str, str], list[Process]] = {}
    for process in reading.processes:
        owner = Owner(process.pod_uid) if process.pod_uid else books.owner(process.pid)
        if not owner.pod_uid and (not process.compute or books.harmless(process.pid)):
            continue
        groups.setdefault((owner.pod_uid, owner.container, process.instance), []).append(process)
    processes = [_usage(key, group, books, managed) for key, group in sorted(groups.items())]
    return msgspec.structs.replace(reading.sample, processes=tuple(_at_most_all(processes)))


def _usage(key: tuple[str, str, str], group: Sequence[Process], books: Books, managed: Container[str]) -> ProcessUsage:
    pod_uid, container, instance = key
    return ProcessUsage(
        pod_uid=pod_uid,
        vram_bytes=sum(process.vram_bytes for process in group),
        sm_percent=min(FULL, round(sum(process.sm_percent for process in group), 1)),
        container=books.container_name(container),
        container_id=container,
        instance=instance,
        pids=len(group),
        foreign=pod_uid not in managed,
    )


def _at_most_all(processes: list[ProcessUsage]) -> list[ProcessUsage]:
    """Scale compute down where the samples of several processes add up to more than there is."""
    total = sum(process.sm_percent for process in processes)
    if total <= FULL:
        return processes
    return [
        msgspec.structs.replace(process, sm_percent=round(process.sm_percent * FULL / total, 1))
        for process in processes
    ]
