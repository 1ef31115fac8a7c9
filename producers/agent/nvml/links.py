"""How the GPUs of a node reach each other: the way through the host, and NVLinks."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import pynvml as nvml

from producers.agent.nvml.session import Handle, LostError, Session
from schemas.hardware import GpuLink, GpuPath

_PATHS: Final[dict[int, GpuPath]] = {
    nvml.NVML_TOPOLOGY_INTERNAL: "internal",
    nvml.NVML_TOPOLOGY_SINGLE: "single",
    nvml.NVML_TOPOLOGY_MULTIPLE: "multiple",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "hostbridge",
    nvml.NVML_TOPOLOGY_NODE: "node",
    nvml.NVML_TOPOLOGY_SYSTEM: "system",
}
_UNKNOWN: Final = -1
_SPEED: Final = (nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)


class Ports(NamedTuple):
    """The active NVLinks of one GPU.

    Attributes:
        peers: How many lead to each GPU, by PCI address.
        switched: How many lead to a switch.
        mbps: Bandwidth of all of them in one direction.
    """

    peers: Counter[str]
    switched: int = 0
    mbps: int = 0


def pci_address(session: Session, handle: Handle) -> str:
    """Return the PCI address of a GPU, such as ``00000000:3B:00.0``."""
    return str(session.ask(nvml.nvmlDeviceGetPciInfo, handle).busId).upper()


def ports(session: Session, handle: Handle) -> Ports:
    """Return the active NVLinks of a GPU; none for one that has none."""
    peers: Counter[str] = Counter()
    switched = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = session.may(None, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break  # there are no further links
        if not state:
            continue
        kind = session.may(nvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            switched += 1
            continue
        remote = session.may(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None:
            peers[str(remote.busId).upper()] += 1
    (speed,) = session.fields(handle, [_SPEED])
    return Ports(peers, switched, (speed or 0) * (peers.total() + switched))


def links(session: Session, handles: Sequence[Handle], addresses: Sequence[str], of: Sequence[Ports]) -> list[GpuLink]:
    """Return how each pair of GPUs reach each other; a pair whose sides contradict each other, or do not answer, is left out.

    Args:
        session: The session.
        handles: The GPUs, in their order in the inventory.
        addresses: Their PCI addresses.
        of: Their NVLinks.
    """
    found = []
    for first in range(len(handles)):
        for second in range(first + 1, len(handles)):
            there, back = of[first].peers[addresses[second]], of[second].peers[addresses[first]]
            if there != back:
                continue
            try:
                level = session.may(_UNKNOWN, nvml.nvmlDeviceGetTopologyCommonAncestor, handles[first], handles[second])
            except LostError:
                continue
            path = _PATHS.get(level, "")
            nvlinks = there + min(of[first].switched, of[second].switched)
            if path or nvlinks:
                found.append(GpuLink(first, second, path, nvlinks))
    return found
