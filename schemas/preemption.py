"""Making room: who is evicted for whom, and what Kubernetes allows of it."""

import msgspec

from schemas.decision import Preemption
from schemas.units import Amount


class DisruptionBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a PodDisruptionBudget allows at present, of the pods that are in the ledger.

    Attributes:
        allowed: Evictions that it allows now (``status.disruptionsAllowed``); 0 while its controller has not caught up.
        pods: UIDs of the pods of ours that it covers and that have a node.
    """

    namespace: str
    name: str
    allowed: Amount = 0
    pods: tuple[str, ...] = ()


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Command: have the victims leave their node. It is void once the ledger keeps no room there for the preemptor.

    Attributes:
        since: LEDGER sequence of the record that began to keep the room.
    """

    preemption: Preemption
    since: Amount
