"""How a request wants its GPUs chosen, beside the placement mode: HAMi's words, NUMA binding, topology, partitions.

What a request does not say itself is its pool's. Most requests and pools say nothing, and then there is no manner at all.
"""

from typing import Final, Protocol

import msgspec

from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights, TopologyRules, rules_for
from schemas.pod import GpuRequest

EVEN: Final = ScoringWeights(slot=1, core=1, memory=1)
"""HAMi's weights where nobody states any."""


class Rules(Protocol):
    """What a pool, or the policy made of it, says for requests that say nothing."""

    @property
    def node_policy(self) -> NodePolicy: ...  # noqa: D102
    @property
    def gpu_policies(self) -> tuple[GpuPolicy, ...]: ...  # noqa: D102
    @property
    def scoring_weights(self) -> ScoringWeights | None: ...  # noqa: D102
    @property
    def topology(self) -> TopologyRules | None: ...  # noqa: D102


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """What a request and its pool come to.

    Attributes:
        node: HAMi's choice among nodes; empty for that of the placement mode.
        gpus: HAMi's choice among GPUs, the first word counting most; empty for that of the placement mode.
        weights: Weights of HAMi's GPU score; None if neither pod nor pool states any.
        numa_bind: All GPUs of the pod from one NUMA node.
        topology: How near each other its GPUs are to be, if it matters.
        partitioned: Every GPU is given as a hardware partition.
    """

    node: NodePolicy = ""
    gpus: tuple[GpuPolicy, ...] = ()
    weights: ScoringWeights | None = None
    numa_bind: bool = False
    topology: TopologyRules | None = None
    partitioned: bool = False

    @property
    def in_words(self) -> bool:
        """Whether HAMi's scores take the place of the placement mode."""
        return bool(self.node or self.gpus or self.weights)

    @property
    def as_a_whole(self) -> bool:
        """Whether anything is asked of the GPUs of a pod as a whole."""
        return bool(self.numa_bind or self.topology or self.partitioned or "topology-aware" in self.gpus)

    @property
    def idle(self) -> bool:
        """Whether only GPUs are taken that nobody is on (``mutex``); others may join."""
        return "mutex" in self.gpus


_NOTHING: Final = Manner()


def manner_of(request: GpuRequest, rules: Rules) -> Manner | None:
    """Return how the GPUs of a request are to be chosen, or None if the placement mode alone says so."""
    if not request.count:
        return None
    found = Manner(
        node=request.node_policy or rules.node_policy,
        gpus=request.gpu_policies or rules.gpu_policies,
        weights=request.scoring_weights or rules.scoring_weights,
        numa_bind=request.numa_bind,
        topology=rules_for(request.topology, rules.topology),
        partitioned=request.isolation == "partitioned",
    )
    return None if found == _NOTHING else found
