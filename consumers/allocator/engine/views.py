"""The cached views of the tables: one fit per request shape and policy, and what fits share."""

from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from consumers.allocator.engine.crew import leading, loosest
from consumers.allocator.engine.eligibility import GpuKind, ScreenKey, screen_key
from consumers.allocator.engine.fit import Fit, Kin
from consumers.allocator.engine.gradient import Gradient, Terrain
from consumers.allocator.engine.manner import Manner, manner_of
from consumers.allocator.engine.need import Need, ShapeKey, kin_key, shape_key
from consumers.allocator.engine.packing import Packing
from consumers.allocator.engine.policy import AHEAD, COMPACT, GRADIENT, PACKING, Policy
from consumers.allocator.engine.ranking import Order, Ranking
from consumers.allocator.engine.reclaim import Reclaim
from consumers.allocator.engine.screen import Screen
from consumers.allocator.engine.table import Table
from consumers.allocator.engine.words import Wording, WordRanking, in_full
from consumers.allocator.engine.workload import Workload
from consumers.allocator.engine.yard import Yard
from schemas.cluster import GpuDevice, Node
from schemas.pod import GpuRequest

CACHED_SHAPES: Final = 512
"""Fits kept at most, the least recently used forgotten first: 12 to 28 bytes each per node of its pool."""


class GpuKinds:
    """Numbers for the kinds of GPU seen so far, so that columns can hold what the static filters look at.

    Attributes:
        known: The kinds; the number of a kind is its place, from 1.
    """

    __slots__ = ("_numbers", "known")

    def __init__(self) -> None:
        self.known: list[GpuKind] = []
        self._numbers: dict[GpuKind, int] = {}

    def number(self, device: GpuDevice, node: Node | None) -> tuple[int, bool]:
        """Return the number of a GPU's kind, a new one for a new kind, and whether pods can get shares of such GPUs at all."""
        kind = GpuKind.of(device, node)
        found = self._numbers.get(kind)
        if found is None:
            self.known.append(kind)
            found = self._numbers[kind] = len(self.known)
        return found, not kind.barred and kind.mode != "mig"


class Views:
    """Everything that is computed from the tables and kept. Dropping any of it changes no decision."""

    __slots__ = (
        "_fits",
        "_kin",
        "_kinds",
        "_rankings",
        "_reclaims",
        "_screens",
        "_terrains",
        "_word_rankings",
        "_yards",
    )

    def __init__(self, kinds: GpuKinds) -> None:
        self._kinds = kinds
        self._fits: OrderedDict[tuple[str, str, ShapeKey], Fit] = OrderedDict()
        self._reclaims: dict[str, Reclaim] = {}
        # The rest lives as long as a fit that uses it.
        self._kin: WeakValueDictionary[tuple[str, str, ShapeKey], Kin] = WeakValueDictionary()
        self._screens: WeakValueDictionary[tuple[str, ScreenKey], Screen] = WeakValueDictionary()
        self._rankings: WeakValueDictionary[tuple[str, str, bool], Ranking] = WeakValueDictionary()
        self._word_rankings: WeakValueDictionary[tuple[str, str, str], WordRanking] = WeakValueDictionary()
        self._yards: WeakValueDictionary[tuple[str, str], Yard] = WeakValueDictionary()
        self._terrains: WeakValueDictionary[tuple[str, str], Terrain] = WeakValueDictionary()

    def fit(self, table: Table, request: GpuRequest, policy: Policy) -> Fit:
        """Return where a request fits in the table of its pool, up to date."""
        key = (request.pool, policy.hash, shape_key(request))
        found = self._fits.get(key)
        if found is None:
            manner = manner_of(request, policy)
            screen, order = self._screen(table, loosest(request)), self._order(table, leading(request), policy, manner)
            need, kin = Need(request, manner, stack=_stacks(policy, manner)), self._kin_of(request, policy)
            found = self._fits[key] = Fit(need, table, screen, order, kin)
            if len(self._fits) > CACHED_SHAPES:
                self._fits.popitem(last=False)
        else:
            self._fits.move_to_end(key)
        found.refresh()
        return found

    def reclaim(self, table: Table, pool: str) -> Reclaim:
        """Return who could be made to leave the nodes of a pool; it is still to be brought up to date."""
        found = self._reclaims.get(pool)
        if found is None:
            found = self._reclaims[pool] = Reclaim(table)
        return found

    def _kin_of(self, request: GpuRequest, policy: Policy) -> Kin:
        key = (request.pool, policy.hash, kin_key(request))
        found = self._kin.get(key)
        if found is None:
            found = self._kin[key] = Kin()
        return found

    def _screen(self, table: Table, request: GpuRequest) -> Screen:
        key = (request.pool, screen_key(request))
        found = self._screens.get(key)
        if found is None:
            found = self._screens[key] = Screen(key[1], table, self._kinds.known)
        return found

    def _order(self, table: Table, request: GpuRequest, policy: Policy, manner: Manner | None) -> Order:
        if manner is not None and manner.in_words:
            return self._wording(table, request, policy, in_full(manner, policy))
        if manner is not None and manner.partitioned and policy.name in AHEAD:
            # The modes that look ahead know shares of GPUs and no partitions.
            policy = msgspec.structs.replace(policy, name=COMPACT, workload=Workload(), prices=())
        if policy.name == GRADIENT:
            return Gradient(request, self._terrain(table, request, policy))
        if policy.name == PACKING:
            return Packing(request, self._yard(table, request, policy))
        key = (request.pool, policy.hash, request.count > 0)
        found = self._rankings.get(key)
        if found is None:
            found = self._rankings[key] = Ranking(policy, table, gpus=request.count > 0)
        return found

    def _wording(self, table: Table, request: GpuRequest, policy: Policy, manner: Manner) -> Order:
        key = (request.pool, policy.hash, manner.node)
        found = self._word_rankings.get(key)
        if found is None:
            found = self._word_rankings[key] = WordRanking(policy, table, manner.node)
        return Wording(request, manner, found)

    def _yard(self, table: Table, request: GpuRequest, policy: Policy) -> Yard:
        key = (request.pool, policy.hash)
        found = self._yards.get(key)
        if found is None:
            found = self._yards[key] = Yard(policy, table)
        return found

    def _terrain(self, table: Table, request: GpuRequest, policy: Policy) -> Terrain:
        key = (request.pool, policy.hash)
        found = self._terrains.get(key)
        if found is None:
            found = self._terrains[key] = Terrain(policy, table)
        return found


def _stacks(policy: Policy, manner: Manner | None) -> bool:
    """Return whether containers of one pod share GPUs rather than take others."""
    if manner is not None and manner.gpus:
        return "binpack" in manner.gpus
    return policy.name in (COMPACT, GRADIENT, PACKING)
