"""MIG: the devices that exist on a GPU, and the profiles that it can be cut into."""

import re
from typing import Any, Final

import pynvml as nvml

from producers.agent.nvml.session import Handle, Session
from schemas.hardware import MigInstance, PartitionTemplate

MIB: Final = 2**20

_PROFILE: Final = re.compile(r"(?:MIG )?(\d+c\.)?(\d+g\.\d+gb\S*)$")
"""The end of a MIG device's name, or the name of a profile: ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""


def enabled(session: Session, handle: Handle) -> bool:
    """Return whether the GPU is in MIG mode."""
    current, _pending = session.may((nvml.NVML_DEVICE_MIG_DISABLE, 0), nvml.nvmlDeviceGetMigMode, handle)
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def handles(session: Session, handle: Handle) -> list[Handle]:
    """Return the handles of the MIG devices on a GPU."""
    most = session.may(0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    found = (session.may(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(most))
    return [device for device in found if device is not None]


def instance(session: Session, handle: Handle, device: Handle) -> MigInstance:
    """Return the MIG device ``device`` of the GPU ``handle``."""
    gpu_instance = session.ask(nvml.nvmlDeviceGetGpuInstanceId, device)
    place = session.ask(
        nvml.nvmlGpuInstanceGetInfo, session.ask(nvml.nvmlDeviceGetGpuInstanceById, handle, gpu_instance)
    ).placement
    vram_bytes, _used = session.memory(device) or (0, 0)
    return MigInstance(
        uuid=session.ask(nvml.nvmlDeviceGetUUID, device),
        profile=profile_name(session.ask(nvml.nvmlDeviceGetName, device)),
        gpu_instance=gpu_instance,
        compute_instance=session.ask(nvml.nvmlDeviceGetComputeInstanceId, device),
        start=place.start,
        slots=place.size,
        vram_bytes=vram_bytes,
    )


def profile_name(name: str) -> str:
    """Return the profile in a name that ends with one, such as ``1c.3g.40gb``; the whole name if none is found."""
    found = _PROFILE.search(name)
    return f"{found[1] or ''}{found[2]}" if found else name


def templates(session: Session, handle: Handle, model: str) -> list[PartitionTemplate]:
    """Return the profiles that a GPU in MIG mode can be cut into, smallest first.

    A profile's share of compute is its slices among those of the largest, rounded down.
    """
    found: list[tuple[Any, list[tuple[int, int]]]] = []
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = session.may(None, nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        if profile is not None:
            found.append((profile, session.may([], _placements, handle, profile.id)))
    whole = max((profile.sliceCount for profile, _ in found), default=1)
    made = {
        name: PartitionTemplate(
            id=name,
            model=model,
            vram_bytes=profile.memorySizeMB * MIB,
            compute_milli=profile.sliceCount * 1000 // whole,
            slots=places[0][1],
            starts=tuple(sorted(start for start, _ in places)),
            most=profile.instanceCount,
        )
        for profile, places in found
        if places and (name := profile_name(profile.name))
    }
    return sorted(made.values(), key=lambda template: (template.vram_bytes, template.compute_milli, template.id))


def _placements(handle: Handle, profile: int) -> list[tuple[int, int]]:
    count = nvml.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, nvml.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, nvml.byref(count))
    return [(place.start, place.size) for place in places[: count.value]]
