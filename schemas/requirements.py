"""What a request may require beyond amounts: containers and gangs.

All of it is frozen and made of tuples, because requests are dictionary keys and parts of cache keys.
"""

from typing import Annotated, Literal

import msgspec

from schemas.units import Amount, Share

Dialect = Literal["", "tensorfusion", "hami"]
"""How the pod wrote its request; empty when no pod was read, as in a simulation."""


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one container of a pod asks for. Amounts are per GPU, as in :class:`schemas.pod.GpuRequest`.

    Attributes:
        name: Container name.
        count: GPUs, each a different physical one. Another container of the pod may be given the same GPUs.
        compute_milli: Compute as a share of each GPU (``nvidia.com/gpucores``); 0 takes what is left and has no limit.
        vram_bytes: VRAM (``nvidia.com/gpumem``).
        vram_milli: VRAM as a share of each GPU (``nvidia.com/gpumem-percentage``).
        dedicated: Nothing else may be on these GPUs or join (``nvidia.com/gpucores: 100``).
        init: It ends before the pod's other containers start, so on a GPU that both are given the pod takes the larger
            of all init containers' largest and all other containers' sum. An init container with restart policy
            ``Always`` runs on and is not ``init`` here.
    """

    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    compute_milli: Share = 0
    vram_bytes: Amount = 0
    vram_milli: Share = 0
    dedicated: bool = False
    init: bool = False


class Gang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pods that are placed all together or not at all (``tensor-fusion.ai/gang-*``).

    Attributes:
        key: What the members share, ``namespace/workload``.
        min_members: Members that must fit before any is placed.
        desired: Members that the workload has in all; 0 when that is not known.
        timeout_s: How long placed members wait for the others, in seconds; 0 waits without end.
    """

    key: str
    min_members: Annotated[int, msgspec.Meta(ge=2)]
    desired: Amount = 0
    timeout_s: Amount = 0
