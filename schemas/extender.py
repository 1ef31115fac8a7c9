"""kube-scheduler's extender protocol, and what gateways and allocators say to each other about it.

Field names are Go's. Source: ``k8s.io/kube-scheduler/extender/v1``, whose types have no JSON tags; an extender with
``nodeCacheCapable: true`` is sent names of nodes only.
"""

from typing import Final

import msgspec

from schemas.kube.core import KubePod

MOST_POINTS: Final = 10
"""``MaxExtenderPriority``: the highest score that kube-scheduler takes of an extender."""


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``filter`` and ``prioritize`` are asked.

    Attributes:
        pod: The pod that needs a node.
        node_names: The nodes that passed all earlier filters; None of a kube-scheduler that sends whole nodes.
    """

    pod: KubePod = msgspec.field(name="Pod")
    node_names: tuple[str, ...] | None = msgspec.field(name="NodeNames", default=None)


class ExtenderFilterResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``filter`` answers.

    Attributes:
        node_names: Nodes that the pod fits on, of those that were asked about.
        failed: For every other node why.
        unresolvable: The same for nodes on which evicting other pods would not help as far as kube-scheduler can tell.
        error: Why there is no answer; the pod is tried again later.
    """

    node_names: tuple[str, ...] = msgspec.field(name="NodeNames", default=())
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node's score, 0 to :data:`MOST_POINTS`; ``prioritize`` answers a list of them."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class ExtenderBindingArgs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``bind`` is asked: kube-scheduler has chosen ``node``."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class ExtenderBindingResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``bind`` answers; with an ``error`` the pod is tried again later."""

    error: str = msgspec.field(name="Error", default="")


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where a pod may go, of the nodes that were asked about.

    Attributes:
        refused: Reason or sentence, and the nodes that it keeps the pod from.
        best: The nodes that the pool's policy prefers, best first, as many as scores can tell apart.
        error: Why there is no answer.
    """

    refused: dict[str, tuple[str, ...]] = {}
    best: tuple[str, ...] = ()
    error: str = ""


class Reserved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Whether a pod holds its place in the ledger; with an ``error`` it does not."""

    error: str = ""
