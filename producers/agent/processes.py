"""Whose the processes on the GPUs are: their pods and containers, from the kernel and from the kubelet's log names.

The agent has to see the host's processes (``hostPID``), because NVML names them by the numbers they have there. The kubelet
links every container's log at ``/var/log/containers/<pod>_<namespace>_<container>-<ID>.log``: the names are enough, no runtime
is asked.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from producers.agent.cgroups import Owner, owner

_LOG: Final = re.compile(r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<container>.+)-(?P<id>[0-9a-f]{64})\.log")
_START_TIME: Final = 19
"""Place of the start time in ``/proc/<pid>/stat`` behind the command's closing bracket: field 22, where ``state`` is 3."""

NOBODY: Final = Owner("")


class Named(NamedTuple):
    """The names that belong to a container ID."""

    namespace: str
    pod: str
    container: str


class Processes:
    """Knows the owners of processes, and forgets those that have ended.

    Args:
        proc: The host's ``/proc``.
        logs: The host's ``/var/log/containers``.
    """

    def __init__(self, proc: Path, logs: Path) -> None:
        self._proc = proc
        self._logs = logs
        self._owners: dict[int, tuple[str, Owner, str]] = {}
        self._looked: dict[int, tuple[str, Owner, str]] = {}
        self._names: dict[str, Named] = {}
        self._unnamed: set[str] = set()

    def owner(self, pid: int) -> Owner:
        """Return the pod and container of a process; ``NOBODY`` for one of the host, or one that has just ended."""
        return self._look(pid)[1]

    def command(self, pid: int) -> str:
        """Return the name of the program."""
        return self._look(pid)[2]

    def started(self, pid: int) -> str:
        """Return when a process was started, in the kernel's ticks; empty when it is gone."""
        return self._stat(pid)[0]

    def forget_all_but(self, pids: set[int]) -> None:
        """Begin a sample, which shows these processes: each is looked at once in it."""
        self._owners = {pid: known for pid, known in self._owners.items() if pid in pids}
        self._looked = {}

    def name(self, container: str) -> Named | None:
        """Return the names of a container by its ID; None while the kubelet has not linked its log."""
        found = self._names.get(container)
        if found is None and container and container not in self._unnamed:
            self._read_names()
            found = self._names.get(container)
            if found is None:
                self._unnamed.add(container)
        return found

    def look_again(self) -> None:
        """Give names another chance that were not there before: the kubelet links logs a moment after the start."""
        self._unnamed.clear()

    def _look(self, pid: int) -> tuple[str, Owner, str]:
        found = self._looked.get(pid)
        if found is None:
            found = self._looked[pid] = self._look_now(pid)
        return found

    def _stat(self, pid: int) -> tuple[str, str]:
        """Return when a process was started and the name of its program, both empty when it is gone."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return "", ""
        head, _, rest = stat.rpartition(")")
        fields = rest.split()
        return fields[_START_TIME] if len(fields) > _START_TIME else "", head.partition("(")[2]

    def _look_now(self, pid: int) -> tuple[str, Owner, str]:
        started, command = self._stat(pid)
        if not started:
            return "", NOBODY, command
        known = self._owners.get(pid)
        if known is not None and known[0] == started:  # else the number has been given to another process
            return known
        try:
            text = (self._proc / str(pid) / "cgroup").read_text()
        except (OSError, UnicodeDecodeError):
            return "", NOBODY, ""
        found = owner(text)
        known = (started, found or NOBODY, command)
        if found is not None:  # a process of the host may still be put into a pod, one of a pod stays there
            self._owners[pid] = known
        return known

    def _read_names(self) -> None:
        try:
            files = [file.name for file in self._logs.iterdir()]
        except OSError:
            return
        found = (_LOG.fullmatch(file) for file in files)
        self._names = {m["id"]: Named(m["namespace"], m["pod"], m["container"]) for m in found if m}
