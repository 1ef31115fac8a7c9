"""What operators set for admission beside what custom resources say: a file in YAML, with keys in camelCase as in the chart."""

import re
from typing import Annotated, Final

import msgspec

from consumers.mutator.migration import AutoMigration

_RANGE: Final = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


class Images(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Images of a vendor's ``ProviderConfig``; empty where none is configured.

    Attributes:
        limiter: ``images.middleware``: the limiter library that soft isolation preloads.
        client: ``images.remoteClient``: the library that hands GPU calls to a worker beside the container.
        worker: ``images.remoteWorker``: that worker, which hard isolation limits.
    """

    limiter: str = ""
    client: str = ""
    worker: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How admission treats pods.

    Attributes:
        scheduler: ``schedulerName`` of pods in TensorFusion's words.
        hami_scheduler: ``schedulerName`` of pods in HAMi's words.
        extender_scheduler: A stock kube-scheduler that asks us as its extender, for pods that need what only it knows: volumes
            that wait for their first consumer, affinity to other pods, topology spread. Empty: there is none.
        gpu_core_policy: HAMi's ``gpuCorePolicy``: ``default``, ``force`` or ``disable``.
        default_memory: HAMi's ``defaultMemory``, in MiB.
        default_cores: HAMi's ``defaultCores``, in percent.
        default_gpu_num: HAMi's ``defaultGPUNum``.
        memory_factor: HAMi's ``memoryFactor``.
        operator_endpoint: Where pods with GPUs of other nodes ask for their worker if their pool does not say: the gateway's URL.
        cluster_host_port_range: Ports of nodes that pods with the label ``host-port: auto`` get, the last one excluded.
        force_overwrite_default_scheduler: HAMi's flag: pods of ``default-scheduler`` that ask for GPUs are ours.
        auto_migration: Which pods with native GPU limits become ours as TensorFusion's; all others with such limits are read
            in HAMi's words.
        nvidia_operator_progressive_migration: The native device plugin gives out GPUs beside us: pods with its limits that say
            nothing in HAMi's words either stay with it, on nodes where pods hold no GPU of ours.
    """

    scheduler: str = "tensor-fusion-scheduler"
    hami_scheduler: str = "hami-scheduler"
    extender_scheduler: str = ""
    gpu_core_policy: str = ""
    default_memory: Annotated[int, msgspec.Meta(ge=0)] = 0
    default_cores: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    default_gpu_num: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(default=1, name="defaultGPUNum")
    memory_factor: Annotated[int, msgspec.Meta(ge=1)] = 1
    operator_endpoint: str = ""
    cluster_host_port_range: str = "42000-62000"
    force_overwrite_default_scheduler: bool = True
    auto_migration: AutoMigration = AutoMigration()
    nvidia_operator_progressive_migration: bool = False

    @property
    def host_ports(self) -> tuple[int, int]:
        """The first port of nodes that pods may get, and the one after the last."""
        first, _, end = self.cluster_host_port_range.partition("-")
        return int(first), int(end)

    def __post_init__(self) -> None:
        ports = _RANGE.fullmatch(self.cluster_host_port_range)
        if ports is None or not 0 < int(ports[1]) < int(ports[2]) <= 65_536:  # noqa: PLR2004  one after the last port
            raise ValueError(
                f"clusterHostPortRange is {self.cluster_host_port_range!r}: write FIRST-END, such as 42000-62000"
            )
        if self.gpu_core_policy not in ("", "default", "force", "disable"):
            raise ValueError(f"gpuCorePolicy is {self.gpu_core_policy!r}: write default, force or disable")
        if self.operator_endpoint and not self.operator_endpoint.startswith(("https://", "http://")):
            raise ValueError(f"operatorEndpoint is {self.operator_endpoint!r}: write https://HOST:PORT")


def read_options(text: str) -> Options:
    """Return the options that a YAML text states.

    Raises:
        ValueError: It is no YAML, has an unknown key, or a value of the wrong kind; the message names the place.
    """
    import yaml  # noqa: PLC0415  most processes have no file

    try:
        return msgspec.convert(yaml.safe_load(text) or {}, Options)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(" ".join(str(error).split())) from None
