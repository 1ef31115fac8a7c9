"""kube-scheduler's extender verbs over HTTP: ``/extender/filter``, ``/extender/prioritize`` and ``/extender/bind``.

Whatever goes wrong is answered in the protocol's own ``Error``: kube-scheduler then tries the pod again later.
"""

import logging
from collections import OrderedDict
from typing import Final, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope

from bus.errors import CallError
from producers.gateway.body import GoneError, TooLargeError, read_body
from producers.gateway.said import Said
from schemas.extender import (
    MOST_POINTS,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    Offer,
)

log = logging.getLogger("gpubus.gateway")

PREFIX: Final = "/extender"
REMEMBERED: Final = 4096
"""Pods whose preferred nodes are remembered from ``filter`` to ``prioritize``, which follows at once."""

LARGEST_BODY: Final = 1_000_000
"""What one message on the bus takes: a pod and the names of some 20,000 nodes."""


class _Meta(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _PodAffinity(msgspec.Struct, frozen=True, gc=False):
    preferred: tuple[msgspec.Raw, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class _Affinity(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spread(msgspec.Struct, frozen=True, rename="camel", gc=False):
    when_unsatisfiable: str = "DoNotSchedule"


class _Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    affinity: _Affinity | None = None
    topology_spread_constraints: tuple[_Spread, ...] = ()

    @property
    def prefers(self) -> bool:
        """Whether it has preferences that kube-scheduler alone can weigh: those among nodes are our engine's business."""
        near = self.affinity
        wishes = (near.pod_affinity, near.pod_anti_affinity) if near is not None else ()
        if any(one is not None and one.preferred for one in wishes):
            return True
        return any(one.when_unsatisfiable == "ScheduleAnyway" for one in self.topology_spread_constraints)


class _Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


class _Args(msgspec.Struct, frozen=True, gc=False):
    """The part of ``ExtenderArgs`` that has to be known here."""

    pod: _Pod = msgspec.field(name="Pod")
    node_names: tuple[str, ...] | None = msgspec.field(name="NodeNames", default=None)


_T = TypeVar("_T")

_args = msgspec.json.Decoder(_Args)
_binding = msgspec.json.Decoder(ExtenderBindingArgs)
_json = msgspec.json.Encoder()


class Allocators(Protocol):
    """Whoever knows where pods fit, and can have them placed."""

    async def filter(self, body: bytes) -> Offer:
        """Judge the pod of an ``ExtenderArgs`` in JSON.

        Raises:
            CallError: Nobody could say in time.
        """

    async def prioritize(self, body: bytes) -> Offer:
        """Say which nodes the pod's pool prefers.

        Raises:
            CallError: Nobody could say in time.
        """

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Reserve what the pod needs and have it bound; return why it is not, empty if it is."""


class ExtenderStatistics(msgspec.Struct):
    """Counters since the start; ``unknown`` counts requests that nobody could answer."""

    filtered: int = 0
    prioritized: int = 0
    bound: int = 0
    not_bound: int = 0
    unknown: int = 0


class Extender:
    """The verbs, for whoever serves them.

    Args:
        allocators: Where requests go.
    """

    def __init__(self, allocators: Allocators) -> None:
        self._allocators = allocators
        self._best: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self.statistics = ExtenderStatistics()
        self._verbs = {
            f"{PREFIX}/filter": self._filter,
            f"{PREFIX}/prioritize": self._prioritize,
            f"{PREFIX}/bind": self._bind,
        }

    async def answer(self, scope: Scope, receive: Receive) -> Said:
        """Answer one request below :data:`PREFIX`."""
        verb = self._verbs.get(scope["path"])
        if verb is None:
            return Said(404, f"gpubus: the verbs are {', '.join(self._verbs)}".encode())
        if scope["method"] != "POST":
            return Said(405, b"gpubus: the extender's verbs are sent with POST")
        return await verb(receive)

    async def _filter(self, receive: Receive) -> Said:
        try:
            body, args = await _read(receive, _args)
            if args.node_names is None:
                return _said(ExtenderFilterResult(error="there are no NodeNames: set nodeCacheCapable: true"))
            offer = await self._allocators.filter(body)
        except (CallError, _BadRequestError) as error:
            return _said(ExtenderFilterResult(error=self._problem(error)))
        self.statistics.filtered += 1
        if offer.error:
            return _said(ExtenderFilterResult(error=offer.error))
        if offer.best and not args.pod.spec.prefers:
            # Nothing is left to weigh. One node saves kube-scheduler all scoring, and us being asked a second time.
            return _said(ExtenderFilterResult(node_names=offer.best[:1]))
        self._remember(args.pod.metadata.uid, offer.best)
        # kube-scheduler cannot tell which pods hold GPUs, so it must not evict any in the hope of making room for this one.
        refused = {name: why for why, names in offer.refused.items() for name in names}
        fits = tuple(name for name in args.node_names if name not in refused) if refused else args.node_names
        return _said(ExtenderFilterResult(node_names=fits, unresolvable=refused))

    async def _prioritize(self, receive: Receive) -> Said:
        try:
            body, args = await _read(receive, _args)
            best = self._best.get(args.pod.metadata.uid)
            if best is None:
                best = (await self._allocators.prioritize(body)).best
        except (CallError, _BadRequestError) as error:
            # The protocol has no field for this; without scores kube-scheduler goes by its own.
            return Said(503, self._problem(error).encode())
        self.statistics.prioritized += 1
        asked = frozenset(args.node_names or ())
        return _said([HostPriority(host=name, score=MOST_POINTS - at) for at, name in enumerate(best) if name in asked])

    async def _bind(self, receive: Receive) -> Said:
        try:
            _, args = await _read(receive, _binding)
        except _BadRequestError as error:
            return _said(ExtenderBindingResult(error=self._problem(error)))
        problem = await self._allocators.bind(args)
        self._best.pop(args.uid, None)
        if problem:
            self.statistics.not_bound += 1
            log.info("pod %s/%s was not bound to %s: %s", args.namespace, args.name, args.node, problem)
        else:
            self.statistics.bound += 1
        return _said(ExtenderBindingResult(error=problem))

    def _remember(self, uid: str, best: tuple[str, ...]) -> None:
        self._best[uid] = best
        self._best.move_to_end(uid)
        if len(self._best) > REMEMBERED:
            self._best.popitem(last=False)

    def _problem(self, error: Exception) -> str:
        self.statistics.unknown += 1
        log.warning("extender: %s", error)
        return f"gpubus: {error}"


class _BadRequestError(ValueError):
    """What came is no request that can be answered."""


async def _read(receive: Receive, decoder: msgspec.json.Decoder[_T]) -> tuple[bytes, _T]:
    try:
        body = await read_body(receive, LARGEST_BODY)
        return body, decoder.decode(body)
    except TooLargeError:
        raise _BadRequestError(
            f"the request is over {LARGEST_BODY} bytes: fewer nodes may be asked about at once"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _BadRequestError(f"the request cannot be read: {error}") from None
    except GoneError:
        raise _BadRequestError("the connection was closed half way") from None


def _said(answer: object) -> Said:
    return Said(200, _json.encode(answer), b"application/json")
