"""What Kubernetes says of namespaces and of evictions in them, as far as we read it."""

import msgspec

from schemas.kube.base import LabelSelector
from schemas.kube.core import ObjectMeta


class KubeNamespace(msgspec.Struct, frozen=True, gc=False):
    """``core/v1.Namespace``."""

    metadata: ObjectMeta


class BudgetSpec(msgspec.Struct, frozen=True, gc=False):
    """``PodDisruptionBudget.spec``: without a selector it covers nothing, with an empty one everything."""

    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """``PodDisruptionBudget.status``."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(msgspec.Struct, frozen=True, gc=False):
    """``policy/v1.PodDisruptionBudget``."""

    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    @property
    def allowed(self) -> int:
        """Evictions that it allows now; none while its controller has not caught up with it, as the API server has it."""
        current = self.status.observed_generation >= self.metadata.generation
        return max(self.status.disruptions_allowed, 0) if current else 0
