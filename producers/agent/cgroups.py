"""Whose a process is: the pod and container in its cgroup path.

The kubelet puts every container below ``…pod<UID>…``: with the cgroupfs driver as ``/kubepods/burstable/pod<UID>/<ID>``, with
the systemd driver as ``…-pod<UID>.slice/<runtime>-<ID>.scope`` with underscores in the UID, on version 1 once per controller
and on version 2 once. Runtimes nest: the outermost pod is the one of this cluster, and the container directly below it the one
that the kubelet started, whatever runs inside it.
"""

import re
from typing import Final, NamedTuple

_POD: Final = re.compile(
    r"(?:^|[/:-])pod"
    r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"  # static pods have a hash for a UID
    r"(?:\.slice)?"
    r"(?:[/:](?P<below>[^\n]*))?$"
)
_CONTAINER: Final = re.compile(r"(?:^|[/:-])(?P<id>[0-9a-f]{64})(?=\.scope|[/:]|$)")
_MONITOR: Final = re.compile(r"(?:crio-)?conmon-")


class Owner(NamedTuple):
    """The pod and container of a process. ``container`` is the runtime's ID; empty for what the runtime itself runs."""

    pod_uid: str
    container: str = ""


def owner(text: str) -> Owner | None:
    """Return the owner that the contents of ``/proc/<pid>/cgroup`` tell; None for a process of no pod."""
    for line in text.splitlines():
        _number, _, rest = line.partition(":")
        _controllers, _, path = rest.partition(":")
        found = _first(path)
        if found is not None:
            return found
    return None


def _first(path: str) -> Owner | None:
    # The outermost pod is wanted, so the path is cut behind one segment after another.
    start = path.find("pod")
    while start >= 0:
        # At this place and nowhere behind it: a container may nest as many names with "pod" in them as it likes.
        match = _POD.match(path, max(start - 1, 0))
        if match is not None:
            below = match["below"] or ""
            container = None if _MONITOR.match(below) else _CONTAINER.search(below)
            return Owner(match["uid"].replace("_", "-"), container["id"] if container else "")
        start = path.find("pod", start + 1)
    return None
