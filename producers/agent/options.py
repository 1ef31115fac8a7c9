"""What an operator may set for the agent of a node."""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from producers.agent.health import IGNORED_XIDS
from producers.agent.podresources import SOCKET

NVML: Final = "nvml"
SIMULATED: Final = "simulated:"

HARMLESS: Final = ("dcgm", "nv-hostengine", "nvidia-smi", "dcgm-exporter", "nvidia-cuda-mps", "nvitop", "Xorg")
"""Beginnings of the names of host programs that may sit on a GPU beside pods."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the agent can be told.

    Attributes:
        node: Kubernetes name of the node.
        gpus: ``nvml``, or ``simulated:`` and a description.
        every_s: Time between samples.
        heartbeat_s: Time between inventories when nothing changes.
        deadline_s: How long one driver call may take.
        ignored_xids: XIDs that say nothing about a GPU.
        xid_settle_s: See :class:`producers.agent.health.Health`.
        xid_quiet_s: Likewise.
        mode: What GPUs that are not cut are operated in. ``mps`` has the agent keep an MPS server running.
        slots: Most containers that may share a GPU; 0 for no limit.
        tflops_milli: Compute by NVML's model name, beside the catalogue.
        proc: The host's ``/proc``.
        sysfs: The host's ``/sys``.
        logs: The host's ``/var/log/containers``.
        pod_resources: The kubelet's socket; None leaves it alone.
        workers: Where worker directories are laid out; None lays out none.
        mps_control: The program that starts MPS servers.
        metrics_port: Port of ``/metrics``; 0 takes a free one, None serves none.
    """

    node: str
    gpus: str = NVML
    every_s: Seconds = 1.0
    heartbeat_s: Seconds = 10.0
    deadline_s: Seconds = 3.0
    ignored_xids: frozenset[int] = IGNORED_XIDS
    xid_settle_s: float = 30.0
    xid_quiet_s: float = 300.0
    mode: Literal["hami-core", "mps"] = "hami-core"
    slots: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    tflops_milli: dict[str, int] = {}
    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    logs: Path = Path("/var/log/containers")
    pod_resources: Path | None = SOCKET
    workers: Path | None = None
    mps_control: str = "nvidia-cuda-mps-control"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None

    @property
    def valid_s(self) -> int:
        """How long an inventory holds without another: two heartbeats may be late or lost."""
        return max(1, round(3 * self.heartbeat_s))
