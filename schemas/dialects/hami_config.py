"""What an operator sets for pods in the HAMi dialect; names, defaults and bounds of its device configuration."""

from typing import Annotated

import msgspec

from schemas.cluster import Amount, Vendor


class HamiConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The device configuration (``device-config.yaml``, key ``nvidia``) and the scheduler flags that change requests.

    Attributes:
        pool: Pool of pods that name none in ``tensor-fusion.ai/gpupool``; HAMi itself knows no pools.
        vendor: Vendor of the GPUs that these resources mean.
        count_name: ``resourceCountName``, the number of vGPUs per container.
        memory_name: ``resourceMemoryName``, MiB per vGPU.
        memory_percentage_name: ``resourceMemoryPercentageName``, percent of the GPU's VRAM per vGPU.
        core_name: ``resourceCoreName``, percent of the GPU's compute per vGPU.
        default_memory_mib: ``defaultMemory``, for a container that says nothing of memory; 0 gives the whole GPU's.
        default_cores_percent: ``defaultCores``, for a container that says nothing of compute.
        default_gpu_num: ``defaultGPUNum``, for a container that states memory or compute but no count; 0 refuses it.
        memory_factor: ``memoryFactor``, what ``gpumem`` is multiplied by; below 1 acts as 1.
        scheduler_names: Schedulers whose pods are ours.
        force_overwrite_default_scheduler: Pods of ``default-scheduler`` are ours too.
    """

    pool: str = ""
    vendor: Vendor = "NVIDIA"
    count_name: str = "nvidia.com/gpu"
    memory_name: str = "nvidia.com/gpumem"
    memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    core_name: str = "nvidia.com/gpucores"
    default_memory_mib: Amount = 0
    default_cores_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    default_gpu_num: Amount = 1
    memory_factor: Amount = 1
    scheduler_names: tuple[str, ...] = ("hami-scheduler",)
    force_overwrite_default_scheduler: bool = True

    @property
    def own_names(self) -> tuple[str, str, str]:
        """Resources that only this dialect has. ``count_name`` is the native device plugin's as well."""
        return self.memory_name, self.memory_percentage_name, self.core_name
