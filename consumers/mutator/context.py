"""What operators have set, as admission looks at it. Pure."""

from collections.abc import Callable

import msgspec

from consumers.mutator.alike import Alike
from consumers.mutator.client import Client
from consumers.mutator.options import Images, Options
from consumers.mutator.quota import Bounds
from schemas.dialects import HamiConfig, TensorFusionDefaults
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.workloads import WorkloadProfileSpec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What operators have set.

    Attributes:
        options: For all pods.
        images: Images of the providers, by vendor, where a pool says nothing of what it puts into pods.
        hami: Words and defaults of HAMi's dialect.
        defaults: For a namespace, a profile's name and a pool's name, what stands behind a TensorFusion pod.
        clients: For a pool and a vendor, what the pool puts into its pods; None if it does not say.
        profiles: For a namespace and a profile's name, the profile as it was written.
        workload: For a namespace and a name, the TensorFusionWorkload that there is; None if there is none.
        bounds: For a namespace, its quotas and what its pods hold.
        namespaces: Labels of a namespace; None while they are not known.
        pools: Names of the pools that there are.
        alike: What pods ask for that were read with all this.
    """

    options: Options = Options()
    images: dict[str, Images] = {}
    hami: HamiConfig
    defaults: Callable[[str, str, str], TensorFusionDefaults]
    clients: Callable[[str, str], Client | None] = lambda _pool, _vendor: None
    profiles: Callable[[str, str], WorkloadProfileSpec | None] = lambda _namespace, _name: None
    workload: Callable[[str, str], TensorFusionWorkload | None] = lambda _namespace, _name: None
    bounds: Callable[[str], Bounds] = lambda _namespace: Bounds()
    namespaces: Callable[[str], dict[str, str] | None] = lambda _namespace: None
    pools: frozenset[str] = frozenset()
    alike: Alike = msgspec.field(default_factory=Alike)
