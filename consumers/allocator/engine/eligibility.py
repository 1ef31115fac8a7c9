"""The filters that depend on what nodes and GPUs are, not on what is free: for one request, one node or GPU at a time."""

from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from consumers.allocator.engine import affinity
from consumers.allocator.engine.host import Host
from consumers.allocator.engine.rules import (
    AFFINITY,
    CLAIMED,
    CORDONED,
    FOREIGN,
    INDEX,
    ISOLATION,
    MODEL,
    MODEL_WORD,
    NO_INVENTORY,
    SELECTOR,
    SILENT,
    TAINT,
    UNHEALTHY,
    UUID,
    VENDOR,
    VGPU_MODE,
)
from schemas.cluster import EVERY_GPU, GpuDevice, Isolation, Node, VgpuMode
from schemas.node_rules import NodeRules
from schemas.pod import GpuRequest

ScreenKey = tuple[
    int, tuple[str, ...], str, tuple[str, ...], tuple[str, ...], tuple[VgpuMode, ...], tuple[str, ...], tuple[str, ...],
    tuple[int, ...], Isolation, NodeRules | None,
]  # fmt: skip


class GpuKind(NamedTuple):
    """All that the filters look at of a GPU, but its UUID and index. GPUs of one node are mostly of one kind."""

    vendor: str
    model: str
    healthy: bool
    foreign: bool
    cordoned: bool
    claimed: bool
    mode: VgpuMode
    isolations: tuple[Isolation, ...]

    @classmethod
    def of(cls, device: GpuDevice, node: Node | None) -> "GpuKind":
        """Return the kind of a GPU on a node, which may not be known yet."""
        cordoned, claimed = (node.cordoned_gpus, node.claimed_gpus) if node is not None else ((), ())
        return cls(
            vendor=device.vendor,
            model=device.model,
            healthy=device.healthy,
            foreign=bool(device.used_by),
            cordoned=device.uuid in cordoned or EVERY_GPU in cordoned,
            claimed=device.uuid in claimed or EVERY_GPU in claimed,
            mode=device.mode,
            isolations=device.isolations,
        )

    @property
    def barred(self) -> int:
        """The first filter that refuses the GPU whatever the request, or 0."""
        if not self.healthy:
            return UNHEALTHY
        if self.cordoned:
            return CORDONED
        if self.foreign:
            return FOREIGN
        return CLAIMED if self.claimed else 0


SCREENED: Final = (
    "count", "models", "vendor", "model_words", "excluded_model_words", "vgpu_mode", "uuids", "excluded_uuids", "gpu_indices",
    "isolation", "nodes",
)  # fmt: skip
"""The fields of a request that the static filters look at."""

screen_key: Final[Callable[[GpuRequest], ScreenKey]] = attrgetter(*SCREENED)
"""Return what two requests must share to meet the same static filters."""


class Eligibility:
    """The static filters of one request.

    Attributes:
        names_gpus: Whether UUIDs or indices decide, so that equal GPUs are not alike.
    """

    __slots__ = (
        "_excluded", "_excluded_words", "_indices", "_isolation", "_models", "_modes", "_uuids", "_vendor", "_words", "count",
        "names_gpus", "rules",
    )  # fmt: skip

    def __init__(self, key: ScreenKey) -> None:
        (
            self.count, models, self._vendor, self._words, self._excluded_words, self._modes, uuids, excluded, indices,
            self._isolation, self.rules,
        ) = key  # fmt: skip
        self._models, self._uuids, self._excluded = frozenset(models), frozenset(uuids), frozenset(excluded)
        self._indices = frozenset(indices)
        self.names_gpus = bool(uuids or excluded or indices)

    def node_stage(self, host: Host) -> int:
        """Return the first filter of whole nodes that refuses the node, or 0."""
        node, stage, rules = host.node, host.stage, self.rules
        if not self.count and stage in (NO_INVENTORY, SILENT):
            stage = 0  # a pod without GPUs takes CPU and memory wherever they are
        if node is None:
            return stage
        if rules is not None and not affinity.selects(rules, node):
            return SELECTOR
        if rules is not None and not affinity.accepts(rules, node):
            return AFFINITY
        if node.taints and affinity.keeps_off(rules, node):
            return max(stage, TAINT)
        return stage

    def preference(self, host: Host) -> int:
        """Return how much the pod prefers the node to others; see :func:`.affinity.preference`."""
        return affinity.preference(self.rules, host.node) if host.node is not None else 0

    def kind_stage(self, kind: GpuKind) -> int:
        """Return the first filter that refuses GPUs of a kind, or 0."""
        if barred := kind.barred:
            return barred
        if self._vendor and kind.vendor != self._vendor:
            return VENDOR
        if self._models and kind.model not in self._models:
            return MODEL
        if not self._named(kind.model.lower()):
            return MODEL_WORD
        if self._modes and kind.mode not in self._modes:
            return VGPU_MODE
        return self._isolation_stage(kind)

    def _named(self, model: str) -> bool:
        wanted = not self._words or any(word in model for word in self._words)
        return wanted and not any(word in model for word in self._excluded_words)

    def _isolation_stage(self, kind: GpuKind) -> int:
        # A whole GPU can always be given, and whoever states no isolation takes any; but a GPU that is operated in partitions
        # gives nothing else, and no other GPU gives them.
        if (kind.mode == "mig") != (self._isolation == "partitioned"):
            return ISOLATION
        if self._isolation in ("", "shared") or not kind.isolations or self._isolation in kind.isolations:
            return 0
        return ISOLATION

    def own_stage(self, device: GpuDevice) -> int:
        """Return the first filter that refuses just this GPU, or 0."""
        if (self._uuids and device.uuid not in self._uuids) or device.uuid in self._excluded:
            return UUID
        return INDEX if self._indices and device.index not in self._indices else 0

    def standing(self, host: Host) -> list[int]:
        """Return the slots of a node whose GPUs the request may have, whatever is free on them."""
        devices = host.devices or ()
        return [
            slot
            for slot, device in enumerate(devices)
            if not self.kind_stage(GpuKind.of(device, host.node)) and not self.own_stage(device)
        ]
