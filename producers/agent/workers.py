"""What a limiter needs on the node beyond the environment: a directory of its own for every container that shares a GPU.

The layout is HAMi's, so that its limiter library works as it is: ``<root>/containers/<pod UID>_<container>`` is mounted into the
container and holds the region that its processes share, ``<root>/lock`` is where they lock, ``<root>/mps`` where an MPS server
listens. A directory goes when its pod has left the ledger, and a while later where nobody knows the pod: the agent may have
been away.
"""

import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from schemas.ledger import Allocation
from schemas.pod import GpuRequest

log = logging.getLogger("gpubus.agent")

STRANGERS_S: Final = 300.0
"""How long the directory of a pod that the ledger does not know is left alone."""

_OPEN: Final = 0o777
"""Containers run as any user; what is inside is theirs alone, because each sees only its own directory."""


def wanted(allocations: Mapping[str, Allocation], requests: Mapping[str, GpuRequest]) -> set[str]:
    """Return the names of the directories that the pods of a node need."""
    names = set()
    for uid, allocation in allocations.items():
        request = requests.get(uid)
        if allocation.gpus and request is not None and not request.remote:
            names |= {f"{uid}_{container}" for container in containers(request)}
    return names


def containers(request: GpuRequest) -> tuple[str, ...]:
    """Return the names of the containers that the GPUs are for, as far as the request says."""
    return tuple(container.name for container in request.containers) or request.container_names


class WorkerDirectories:
    """The directories under ``root``."""

    def __init__(self, root: Path) -> None:
        self._containers = root / "containers"
        self._lock = root / "lock"
        self._made: set[str] = set()

    def lay_out(self, names: set[str], known_uids: Iterable[str]) -> None:
        """Make what is missing, and remove what nobody needs any more.

        Args:
            names: Directories that have to be there.
            known_uids: Pods that hold something on the node; theirs are never removed.

        Raises:
            OSError: The root cannot be written.
        """
        for directory in (self._containers, self._lock):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock.chmod(_OPEN)
        for name in names:
            directory = self._containers / name
            if not directory.is_dir():
                directory.mkdir(exist_ok=True)
                directory.chmod(_OPEN)
        self._made |= names
        self._clean(set(known_uids))

    def _clean(self, known: set[str]) -> None:
        for directory in self._containers.iterdir():
            uid = directory.name.partition("_")[0]
            if uid in known or directory.is_symlink() or not directory.is_dir():
                continue
            ours = directory.name in self._made
            if ours or time.time() - directory.stat().st_mtime > STRANGERS_S:
                log.info("removing %s: its pod holds nothing here", directory)
                shutil.rmtree(directory, ignore_errors=True)
                self._made.discard(directory.name)
