"""Which workers of a workload to make and to remove. Pure: the same pods give the same plan.

Each replica has a name of its own, ``<workload>-tf-worker-<number>``, numbered from 0. The API server gives a name once, so
any number of processes that carry out a plan, one of them on an old view too, make no worker too many; a worker's successor is
made when it is gone and has given its GPUs back. Workers under other names, such as upstream made, count as replicas until
they go.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

SETTLE: Final = timedelta(seconds=10)
"""How old a worker that has ended must be before it is made anew: one that a node refuses ends at once, and would so again."""

MOST: Final = 64
"""Workers made at a time."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a workload.

    Attributes:
        ready: Whether it is ready and stays.
        ending: Whether it has been deleted and is not gone yet.
        ended: Whether its containers run no more.
        address: Address of the pod; empty while it has none.
        port: Where it listens.
        client: UID of the pod that it is for alone; empty for one that clients share.
    """

    name: str
    uid: str
    created_at: datetime
    ready: bool = False
    ending: bool = False
    ended: bool = False
    address: str = ""
    port: int = 8000
    client: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What to do.

    Attributes:
        make: Names of workers to make.
        clients: UIDs of the pods that those are for alone, by the worker's name.
        remove: Workers to delete.
        again: When to look again though nothing happens; None if there is no need to.
    """

    make: tuple[str, ...] = ()
    remove: tuple[Worker, ...] = ()
    again: datetime | None = None
    clients: Mapping[str, str] = {}


def worker_name(workload: str, number: int) -> str:
    """Return the name of a workload's replica of that number."""
    return f"{workload}-tf-worker-{number}"


def plan_workers(workload: str, replicas: int, workers: Iterable[Worker], now: datetime) -> Plan:
    """Return what brings a workload to as many workers as it wants; those that may stay are not touched."""
    there = {worker.name: worker for worker in workers}
    numbered = {name: number for name in there if (number := _number(workload, name)) is not None}
    others = sorted((there[name] for name in there.keys() - numbered), key=lambda one: (one.created_at, one.name))
    living = [one for one in others if not one.ended]
    numbers = max(replicas - len(living), 0)
    surplus = {one.name for one in living[replicas:]} | {name for name, number in numbered.items() if number >= numbers}
    remove, wait = [], []
    for name, one in sorted(there.items()):
        if one.ending:
            continue
        if name in surplus or (one.ended and now - one.created_at >= SETTLE):
            remove.append(one)
        elif one.ended:
            wait.append(one.created_at + SETTLE)
    make: list[str] = []
    for number in range(numbers):
        if len(make) == MOST:
            wait.append(now)
            break
        if (name := worker_name(workload, number)) not in there:
            make.append(name)
    return Plan(tuple(make), tuple(remove), min(wait, default=None))


def plan_dedicated(
    workload: str,
    wanted: Mapping[str, str],
    workers: Iterable[Worker],
    now: datetime,
    used: Collection[str] = (),
) -> Plan:
    """Return what brings a workload to one worker for each client.

    A worker is one client's for as long as that is there: one that comes back under its name gets another, for the first may hold
    what was its predecessor's. Workers that clients shared before go when none uses them any more; those that are nobody's alone
    under other names, such as upstream made, are somebody else's to keep.

    Args:
        workload: Name of the workload.
        wanted: UIDs of clients, by the names that their workers have.
        workers: Those that there are.
        now: The time.
        used: UIDs of workers that clients use.
    """
    remove, wait, make = [], [], []
    there = {worker.name: worker for worker in workers}
    for name, one in sorted(there.items()):
        if one.ending or (not one.client and (_number(workload, name) is None or one.uid in used)):
            continue
        if not one.client or wanted.get(name) != one.client or (one.ended and now - one.created_at >= SETTLE):
            remove.append(one)
        elif one.ended:
            wait.append(one.created_at + SETTLE)
    make = sorted(wanted.keys() - there.keys())
    if len(make) > MOST:
        wait.append(now)
    made = tuple(make[:MOST])
    return Plan(made, tuple(remove), min(wait, default=None), {name: wanted[name] for name in made})


def _number(workload: str, name: str) -> int | None:
    number = name.rpartition("-")[2]
    is_number = number.isascii() and number.isdigit()
    return int(number) if is_number and name == worker_name(workload, int(number)) else None
