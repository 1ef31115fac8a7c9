"""What NVML tells of a node's GPUs apart from what they do: identity once, condition whenever it is asked."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pynvml as nvml

from producers.agent.nvml import mig
from producers.agent.nvml.links import pci_address
from producers.agent.nvml.session import Handle, Session
from producers.agent.source import Seen, Symptom
from schemas.catalogue import NVML_NAMES
from schemas.cluster import GpuDevice

log = logging.getLogger("gpubus.agent")

FLOPS_PER_CLOCK: Final = 2
"""A fused multiply-add counts as two operations."""

_RECOVERY: Final = (nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)
_RECOVERY_WORDS: Final = {
    nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain its peer-to-peer traffic",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset the GPU",
}


class Identity(NamedTuple):
    """What does not change about a GPU while the driver is loaded."""

    handle: Handle
    device: GpuDevice


def identify(session: Session, handle: Handle, index: int, *, tflops_milli: Mapping[str, int], sysfs: Path) -> Identity:
    """Return who a GPU is.

    Args:
        session: The session.
        handle: The GPU.
        index: Its NVML index.
        tflops_milli: Compute by model name, for models that the catalogue lacks or has wrong.
        sysfs: Where the kernel tells the NUMA node of a PCI device, ``/sys``.

    Raises:
        SourceError, LostError: It does not answer.
    """
    name = session.ask(nvml.nvmlDeviceGetName, handle)
    pci = pci_address(session, handle)
    major, minor = session.may((0, 0), nvml.nvmlDeviceGetCudaComputeCapability, handle)
    known = tflops_milli.get(name) or (NVML_NAMES[name].tflops_milli if name in NVML_NAMES else 0)
    compute = known or _estimate(session, handle, name)
    device = GpuDevice(
        uuid=session.ask(nvml.nvmlDeviceGetUUID, handle),
        index=index,
        model=name,
        tflops_milli=compute,
        estimated=not known,
        vram_bytes=_vram(session, handle, name),
        numa_node=_numa(pci, sysfs),
        pci=pci,
        compute_capability=f"{major}.{minor}" if major else "",
    )
    return Identity(handle, device)


def look(session: Session, identity: Identity) -> Seen:
    """Return the GPU with its present condition.

    Raises:
        SourceError, LostError: It does not answer.
    """
    handle = identity.handle
    ecc = session.may(None, nvml.nvmlDeviceGetEccMode, handle)
    persistence = session.may(None, nvml.nvmlDeviceGetPersistenceMode, handle)
    cut = mig.enabled(session, handle)
    instances = tuple(mig.instance(session, handle, device) for device in mig.handles(session, handle)) if cut else ()
    device = msgspec.structs.replace(
        identity.device,
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
        mode="mig" if cut else identity.device.mode,
        instances=instances,
        mps=bool(session.may([], nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle)),
    )
    (action,) = session.fields(handle, [_RECOVERY])
    symptoms = _memory(session, handle)
    if action:
        wanted = _RECOVERY_WORDS.get(action, f"take recovery action {action}")
        symptoms.append(Symptom("RecoveryRequired", f"the driver asks to {wanted}"))
    return Seen(device, tuple(symptoms), None if action is None else bool(action))


def _memory(session: Session, handle: Handle) -> list[Symptom]:
    """Return what is wrong with the GPU's memory.

    A row that is to be remapped, or a page to be retired, waits for a reset: NVIDIA's memory error management says to drain the
    GPU and reset it. A remapping that failed means to replace it. Only GPUs that can do neither are judged by their count of
    uncorrectable errors since the driver was loaded.
    """
    rows = session.may(None, nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        _corrected, _uncorrected, pending, failed = rows
        if failed:
            return [Symptom("RowRemap", "remapping a memory row has failed: the GPU is to be replaced")]
        return [Symptom("RowRemap", "a memory row waits to be remapped: the GPU is to be reset")] if pending else []
    if session.may(0, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return [Symptom("RowRemap", "a memory page waits to be retired: the GPU is to be reset")]
    errors = session.may(
        0, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    return [Symptom("EccErrors", f"{errors} uncorrectable memory errors since the driver was loaded")] if errors else []


def _vram(session: Session, handle: Handle, name: str) -> int:
    memory = session.memory(handle)
    if memory is not None:
        return memory[0]
    # Unified memory: the driver has no answer. Nominal where it is known, and else nothing that could be given out.
    nominal = NVML_NAMES[name].vram_bytes if name in NVML_NAMES else 0
    log.warning("GPU model %r does not tell its memory: %d bytes are assumed", name, nominal)
    return nominal


def _estimate(session: Session, handle: Handle, name: str) -> int:
    """Return a lower bound of the compute of an unknown model: one fused multiply-add per core and clock."""
    cores = session.may(0, nvml.nvmlDeviceGetNumGpuCores, handle)
    mhz = session.may(0, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    tflops_milli: int = cores * mhz * FLOPS_PER_CLOCK // 1000
    log.warning(
        "GPU model %r is not in the catalogue: counted as %d.%03d TFLOPS, from %d cores at %d MHz; state its FP16 TFLOPS "
        "with --models",
        name,
        *divmod(tflops_milli, 1000),
        cores,
        mhz,
    )
    return tflops_milli


def _numa(pci: str, sysfs: Path) -> int:
    domain, _, rest = pci.partition(":")
    file = sysfs / "bus" / "pci" / "devices" / f"{domain[-4:]}:{rest}".lower() / "numa_node"
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1
