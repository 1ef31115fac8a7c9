"""The scheduler's configuration as TensorFusion's and HAMi's charts write it: what pools do for all their pods.

It is a ``KubeSchedulerConfiguration`` of which the arguments of two plugins are followed, ``GPUResourcesFit`` and
``GPUNetworkTopologyAware``, and beside it the key ``policy`` with HAMi's two scheduler policies. What kube-scheduler's own
plugins are told has no meaning here and is named in :attr:`Scheduling.unfollowed`. Whatever else is written is refused: a word
that is misspelt must not be taken for one that is left out.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from schemas.dialects.text import RequestError
from schemas.placement import GpuPolicy, NodePolicy, Tier, TopologyRules, TopologySource
from schemas.plain import decode_yaml
from schemas.units import Amount

FIT: Final = "GPUResourcesFit"
TOPOLOGY: Final = "GPUNetworkTopologyAware"
SCHEDULERS: Final = ("tensor-fusion-scheduler", "hami-scheduler")
"""Pods that name one of these are ours to bind. Admission writes the name; whatever else a pod says, another one's is not."""

_NATIVE: Final = (
    "DefaultPreemption", "DynamicResources", "InterPodAffinity", "NodeAffinity", "NodeResourcesBalancedAllocation",
    "NodeResourcesFit", "PodTopologySpread", "VolumeBinding",
)  # fmt: skip
"""kube-scheduler's own plugins that take arguments."""

_KEYS: Final = (
    "apiVersion", "clientConnection", "delayCacheUntilActive", "enableContentionProfiling", "enableProfiling", "extenders",
    "healthzBindAddress", "kind", "leaderElection", "metricsBindAddress", "parallelism", "percentageOfNodesToScore",
    "podInitialBackoffSeconds", "podMaxBackoffSeconds", "policy", "profiles",
)  # fmt: skip
_PERCENT: Final = 100
_FIX: Final = "write a KubeSchedulerConfiguration, as the chart's values.yaml has it"


T = TypeVar("T", bound=msgspec.Struct)


class _Fit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    max_worker_per_node: Amount = 0
    vram_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    tflops_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class _Topology(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    mode: Literal["soft", "hard"] = "soft"
    topology_source: TopologySource = "auto"
    max_allowed_tier: Tier = 1
    unknown_topology_policy: Literal["treat-as-worst", "reject"] = "treat-as-worst"
    prefer_least_damage: bool = True


class _Policy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_scheduler_policy: NodePolicy = ""
    gpu_scheduler_policy: Literal["", "binpack", "spread", "topology-aware", "mutex", "numa"] = ""


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """What is followed of a configuration, as :class:`schemas.cluster.Pool` has it.

    Attributes:
        unfollowed: Plugins of kube-scheduler that are told something, which nobody follows here.
    """

    vram_weight: int = 70
    tflops_weight: int = 30
    max_workers_per_node: int = 0
    topology: TopologyRules | None = None
    node_policy: NodePolicy = ""
    gpu_policies: tuple[GpuPolicy, ...] = ()
    unfollowed: tuple[str, ...] = ()


def read_scheduling(text: str | bytes) -> Scheduling:
    """Return what a configuration says.

    Of the two weights one that is left out is 0 where the other is written, as upstream has it; without both they are those
    of the chart. Without the arguments of ``GPUNetworkTopologyAware`` topology matters to pods alone that ask for it.

    Raises:
        RequestError: It says what is not understood; the message names field, value and fix.
    """
    tree = decode_yaml(text, field="schedulerConfig", fix=_FIX)
    top = _mapping(tree if tree is not None else {}, "schedulerConfig")
    _only(top, _KEYS, "schedulerConfig")
    arguments = _arguments(top)
    found: dict[str, Any] = {"unfollowed": tuple(sorted({name for name, _, _ in arguments if name in _NATIVE}))}
    for name, where, args in arguments:
        if name == FIT:
            found |= _fit(_read(args, _Fit, where), where)
        elif name == TOPOLOGY:
            rules = _read(args, _Topology, where)
            found["topology"] = TopologyRules(
                mode=rules.mode,
                source=rules.topology_source,
                max_allowed_tier=rules.max_allowed_tier,
                unknown_topology=rules.unknown_topology_policy,
                prefer_least_damage=rules.prefer_least_damage,
            )
    policy = _read(top.get("policy"), _Policy, "schedulerConfig.policy")
    gpu = policy.gpu_scheduler_policy
    return Scheduling(node_policy=policy.node_scheduler_policy, gpu_policies=(gpu,) if gpu else (), **found)


def _arguments(top: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return name, place and arguments of each plugin that our profile configures."""
    found: list[tuple[str, str, Any]] = []
    for number, profile in enumerate(_sequence(top.get("profiles"), "schedulerConfig.profiles")):
        where = f"schedulerConfig.profiles[{number}]"
        mapping = _mapping(profile, where)
        _only(mapping, ("percentageOfNodesToScore", "pluginConfig", "plugins", "schedulerName"), where)
        scheduler = mapping.get("schedulerName")
        if scheduler not in SCHEDULERS:
            continue  # a profile of somebody else's pods
        _refuse_disabled(mapping.get("plugins"), f"{where}.plugins")
        for place, entry in enumerate(_sequence(mapping.get("pluginConfig"), f"{where}.pluginConfig")):
            here = f"{where}.pluginConfig[{place}]"
            plugin = _mapping(entry, here)
            _only(plugin, ("args", "name"), here)
            name = plugin.get("name")
            if name not in (FIT, TOPOLOGY, *_NATIVE):
                raise RequestError(f"{here}.name", str(name), "is no plugin", f"use {FIT} or {TOPOLOGY}")
            if name not in _NATIVE and any(name == other for other, _, _ in found):
                raise RequestError(f"{here}.name", name, "has arguments already", "write them once, in one profile")
            found.append((name, f"{here}.args", plugin.get("args")))
    return found


def _refuse_disabled(plugins: Any, where: str) -> None:
    """What is configured and switched off would have to be followed and not: one of the two is to be taken out."""
    for point, sets in _mapping(plugins if plugins is not None else {}, where).items():
        disabled = _mapping(sets if sets is not None else {}, f"{where}.{point}").get("disabled")
        for entry in _sequence(disabled, f"{where}.{point}.disabled"):
            name = _mapping(entry, f"{where}.{point}.disabled").get("name")
            if name in (FIT, TOPOLOGY):
                raise RequestError(
                    f"{where}.{point}.disabled", name, "cannot be switched off", "take out its pluginConfig instead"
                )


def _fit(args: _Fit, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {"max_workers_per_node": args.max_worker_per_node}
    weights = {"vramWeight": args.vram_weight, "tflopsWeight": args.tflops_weight}
    if any(weight is not None for weight in weights.values()):
        for field, weight in weights.items():
            percent = round(_PERCENT * (weight or 0))
            if abs(percent - _PERCENT * (weight or 0)) > 1e-9:  # noqa: PLR2004  0.29 is no whole number of hundredths in a float
                raise RequestError(
                    f"{where}.{field}", str(weight), "is finer than a hundredth", f"write {percent / 100}"
                )
            found["vram_weight" if field == "vramWeight" else "tflops_weight"] = percent
    return found


def _read(args: Any, struct: type[T], where: str) -> T:
    mapping = _mapping(args if args is not None else {}, where)
    _only(mapping, (*struct.__struct_encode_fields__, "apiVersion", "kind"), where)
    try:
        return msgspec.convert(mapping, struct)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        raise RequestError(
            f"{where}.{field}", str(mapping.get(field)), f"is not right: {what}", "see values.yaml"
        ) from None


def _only(mapping: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise RequestError(f"{where}.{key}", "", "is not known", f"use one of {', '.join(sorted(known))}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise RequestError(where, str(value)[:100], "is no object", _FIX)


def _sequence(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise RequestError(where, str(value)[:100], "is no list", _FIX)
