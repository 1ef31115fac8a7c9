"""Who of a controller's pods is ours when only some may be (``enabled-replicas``), and who has which port of nodes."""

from typing import Final

import msgspec

from schemas.event import Timestamp

HOST_PORT_SLOT: Final = "gpubus.io/host-port"
"""Label of a pod that admission has given a port of its node: the port and the UID of the admission."""


class Slot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pod's place among those that are ours.

    Attributes:
        id: UID of the admission that took it, behind the port if it is one; the pod carries it in its label ``gpubus.io/slot`` or
            ``gpubus.io/host-port``.
        taken_at: When it was taken, by the clock of the mutator that took it.
        pod_uid: The pod, once it has been seen; empty until then, and for ever if it never appears.
    """

    id: str
    taken_at: Timestamp
    pod_uid: str = ""


class WorkloadSlots(msgspec.Struct, frozen=True, kw_only=True):
    """All slots of one controller: ``gpubus.ledger.workload.<namespace>.<kind>.<name>.<uid>``, replaced by compare-and-set.

    A block of ports is one too, ``gpubus.ledger.ports.<first>``: each slot's id begins with its port.
    """

    owner: str
    slots: tuple[Slot, ...] = ()
