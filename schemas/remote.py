"""GPUs of other nodes: pods that use them, and the connection of each to the worker that holds them for it.

Admission changes such a client and says in its annotations which workload it uses and what its workers are to be. Nothing is
made before the API server has stored the pod: what follows is the watcher's word for it.
"""

from typing import Any, Final

import msgspec

from schemas.event import Timestamp

WORKLOAD_SPEC: Final = "gpubus.io/workload-spec"
"""Annotation of a client: ``TensorFusionWorkload.spec`` of its workers, in JSON, as admission has read it."""

CLIENT_UID: Final = "gpubus.io/client-uid"
"""Annotation of a worker that is one client's alone: UID of that pod."""

WORKLOAD_MODE: Final = "tensor-fusion.ai/workload-mode"
"""Annotation of a workload that clients have called for: ``dynamic``, a worker for each, or ``fixed``, as many as it says."""

WORKLOAD_MAKER: Final = "tensor-fusion.ai/workload-maker"
"""Annotation of such a workload: kind and name of who has made its clients, who alone may have it used by more."""

WORKLOAD_MAKER_API: Final = "gpubus.io/workload-maker-api"
"""Annotation of such a workload: API version of who has made its clients. It is there as long as that is, or a client."""

_SUFFIX: Final = "-tf-vgpu"
LONGEST_POD_NAME: Final = 253 - len(_SUFFIX)


def connection_name(pod: str) -> str:
    """Return the name of a client's connection, and of its worker where it has one of its own."""
    return f"{pod}{_SUFFIX}"


def client_of(connection: str) -> str:
    """Return the name of the pod whose connection, and own worker, has this name."""
    return connection.removesuffix(_SUFFIX)


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has made a client: what a workload is there for."""

    api_version: str
    kind: str
    name: str
    uid: str


def maker_of(owner: Owner) -> str:
    """Return what a workload says of who has called for it, in :data:`WORKLOAD_MAKER`."""
    return f"{owner.kind}/{owner.name}"


class RemoteClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that uses GPUs of other nodes, while it may run.

    Attributes:
        uid: The pod's.
        workload: Name of its ``TensorFusionWorkload``, in its own namespace.
        spec: What that is to be.
        pool: Pool of its GPUs.
        owner: Its controller, or the pod itself.
        created_at: When the pod was created: the newest client of a workload says what that is to be.
        slot: Its slot among ``enabled-replicas``; empty where those are not counted.
        host_port: Its slot among the ports of nodes; empty if it has asked for none.
        ending: Whether it has been deleted and runs on in its grace period: it keeps what it has, and calls for nothing new.
    """

    namespace: str
    name: str
    uid: str
    workload: str
    spec: dict[str, Any]
    pool: str = ""
    owner: Owner
    created_at: Timestamp
    slot: str = ""
    host_port: str = ""
    ending: bool = False


class Connection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ``TensorFusionConnection`` as it is.

    Attributes:
        workload: Its workload, in its own namespace.
        client: Name of the client's pod.
        client_uid: UID of that pod, which alone is told the URL.
        worker: Name of the worker's pod; empty while there is none.
        url: Where that is; empty while it is not ready.
    """

    namespace: str
    name: str
    workload: str
    client: str
    client_uid: str
    worker: str = ""
    url: str = ""


class Seats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who uses which worker of a workload: ``gpubus.ledger.seats.<namespace>.<workload>``, replaced by compare-and-set.

    Attributes:
        seats: UID of the worker by that of the client.
    """

    namespace: str
    workload: str
    seats: dict[str, str] = {}
