"""What the agent says, as messages."""

import hashlib
from typing import Final

import msgspec

from bus import subjects
from bus.codec import encode
from producers.agent.outbox import Outgoing
from schemas.cluster import GpuInventory
from schemas.event import Event, Timestamp
from schemas.observed import Drift, PodNotice
from schemas.registry import TYPE_NAMES
from schemas.usage import NodeUsage

_ID_BYTES: Final = 8


def inventory(said: GpuInventory) -> Outgoing:
    """State the GPUs of a node."""
    return _message(subjects.state("gpu", said.node), said.node, said, said.observed_at, said.node)


def usage(said: NodeUsage) -> Outgoing:
    """State what they do."""
    return _message(subjects.usage_gpu(said.node), said.node, said, said.at, said.node)


def drift(said: Drift) -> Outgoing:
    """Report a difference from the ledger."""
    what = f"{said.kind}:{said.gpu}:{said.pod_uid}:{said.resolved}"
    return _message(subjects.drift(said.node), said.node, said, said.at, f"{said.node}:{what}")


def notice(said: PodNotice) -> Outgoing:
    """Tell a pod about its GPU."""
    what = f"{said.pod_uid}:{said.uuid}:{said.reason}"
    return _message(
        subjects.notice(said.namespace, said.name, said.node),
        said.node,
        said,
        said.at,
        what,
        about=said.namespace + "/" + said.name,
    )


def _message(subject: str, node: str, data: msgspec.Struct, at: Timestamp, what: str, *, about: str = "") -> Outgoing:
    kind = TYPE_NAMES[type(data)]
    digest = hashlib.blake2b(f"{kind}:{what}:{at.isoformat()}".encode(), digest_size=_ID_BYTES).hexdigest()
    event = Event(
        id=f"{node}:{digest}",
        source=f"/gpubus/agent/{node}",
        type=kind,
        subject=about or node,
        time=at,
        data=data,
    )
    return Outgoing(subject, encode(event), f"{kind}:{event.id}")
