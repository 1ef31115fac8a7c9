"""The world as events have told it: nodes, inventories, pools and allocations, updated in place."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from consumers.allocator.engine.fit import Fit
from consumers.allocator.engine.holders import Holders
from consumers.allocator.engine.host import Capacity, Host
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.reclaim import Reclaim
from consumers.allocator.engine.rules import MAX_GPUS_PER_NODE
from consumers.allocator.engine.standing import Standing
from consumers.allocator.engine.table import Table
from consumers.allocator.engine.views import GpuKinds, Views
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.hardware import GpuLink
from schemas.ledger import Allocation
from schemas.pod import GpuRequest

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


class Snapshot:
    """All that a decision depends on, whatever the order in which it became known.

    Events about parts that are not complete yet (an inventory before its node, allocations of an unknown node or GPU, a pool
    after its nodes) are held and count as soon as the rest arrives. Applying the same event twice changes nothing.
    Not thread-safe; one allocator owns it.
    """

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._hosts: dict[str, Host] = {}
        self._tables: dict[str, Table] = {}
        self._holders = Holders()
        self._kinds = GpuKinds()
        self._views = Views(self._kinds)
        self.standing = Standing()
        """What stands on the known nodes of each pool."""

    def put_pool(self, pool: Pool) -> None:
        """Add or replace a pool. What it says of capacity applies to its nodes at once; placement is the caller's policy."""
        before = self._pool(pool.name)
        self._pools[pool.name] = pool
        self._settle_pool(before)

    def remove_pool(self, name: str) -> None:
        """Forget a pool: requests for it are refused, its nodes stay known."""
        before = self._pool(name)
        self._pools.pop(name, None)
        self._settle_pool(before)

    def put_node(self, node: Node) -> bool:
        """Add or replace a node, and return whether that changes anything."""
        host = self._host(node.name)
        before = host.node
        if before == node:
            return False
        if before is not None and before.pool != node.pool:
            self._leave(host, before.pool)
            before = None
        host.node = node
        self._rebuild(host)
        if before is None:
            self._tables.setdefault(node.pool, Table()).join(host)
            for held in host.allocations.values():
                self.standing.count(node.pool, held, 1)
        return True

    def remove_node(self, name: str) -> None:
        """Forget a node; its inventory and allocations are kept until their own removal arrives."""
        host = self._hosts.get(name)
        if host is not None and host.node is not None:
            self._leave(host, host.node.pool)
            host.node = None
            self._rebuild(host)
            self._drop_if_empty(host)

    def put_inventory(self, inventory: GpuInventory) -> bool:
        """Add or replace a node's GPUs, and return whether that changes anything: a heartbeat costs a comparison.

        Raises:
            ValueError: The inventory lists a UUID twice, or more GPUs than the engine can count on one node.
        """
        devices = tuple(sorted(inventory.gpus, key=lambda device: (device.index, device.uuid)))
        if len(devices) > MAX_GPUS_PER_NODE:
            raise ValueError(
                f"node {inventory.node} lists {len(devices)} GPUs: at most {MAX_GPUS_PER_NODE} are supported"
            )
        if len({device.uuid for device in devices}) < len(devices):
            raise ValueError(f"node {inventory.node} lists a GPU UUID twice: each GPU needs its own")
        host = self._host(inventory.node)
        links = _by_slot(inventory, devices)
        if (host.devices, host.links, host.partitions) == (devices, links, inventory.partitions):
            return False
        host.devices, host.links, host.partitions = devices, links, inventory.partitions
        self._rebuild(host)
        return True

    def remove_inventory(self, node: str) -> None:
        """Forget a node's GPUs."""
        host = self._hosts.get(node)
        if host is not None and host.devices is not None:
            host.devices, host.links, host.partitions = None, (), ()
            self._rebuild(host)
            self._drop_if_empty(host)

    def set_allocations(self, node: str, allocations: Iterable[Allocation]) -> None:
        """Replace all allocations of a node, as its ledger record lists them, and thaw it if it was frozen."""
        host = self._host(node)
        old, new = host.allocations, {allocation.pod_uid: allocation for allocation in allocations}
        charges: list[tuple[Allocation, int]] = []
        for uid, held in old.items():
            if uid not in new:
                self._holders.remove(uid, node)
                charges.append((held, -1))
        for uid, allocation in new.items():
            before = old.get(uid)
            if before is None:
                self._holders.add(uid, node)
            elif before.says_as(allocation):
                continue  # most records only confirm what this allocator added itself: no cached verdict goes stale
            else:
                charges.append((before, -1))
            charges.append((allocation, 1))
        host.allocations = new
        for allocation, more in charges:
            self._count(host, allocation, more)
        changed = host.charge_all(charges)
        if host.frozen:
            host.frozen = False
            self._rebuild(host)
        elif charges and host.node is not None:
            self._tables[host.node.pool].write_free(host, changed)
        self._drop_if_empty(host)

    def set_silent(self, node: str, *, silent: bool) -> bool:
        """Take note that a node's agent has not spoken for too long, or speaks again; return whether that is new."""
        host = self._hosts.get(node)
        if host is None and silent:
            host = self._host(node)
        if host is None or host.silent == silent:
            return False
        host.silent = silent
        self._rebuild(host)
        self._drop_if_empty(host)
        return True

    def freeze(self, node: str) -> None:
        """Give nothing more out on a node, because its ledger record cannot be decoded; what it held stays counted."""
        host = self._host(node)
        host.frozen = True
        self._rebuild(host)

    def add(self, node: str, allocation: Allocation) -> None:
        """Add one pod's allocation to a node, replacing what the pod held there."""
        host = self._host(node)
        changed = []
        held = host.allocations.get(allocation.pod_uid)
        if held is None:
            self._holders.add(allocation.pod_uid, node)
        else:
            changed = host.charge(held, -1)
            self._count(host, held, -1)
        host.allocations[allocation.pod_uid] = allocation
        self._count(host, allocation, 1)
        changed += host.charge(allocation, 1)
        if host.node is not None:
            self._tables[host.node.pool].write_free(host, changed)

    def remove(self, node: str, pod_uid: str) -> None:
        """Give back what a pod holds on a node. A pod that holds nothing there is no error: releases are redelivered."""
        host = self._hosts.get(node)
        held = host.allocations.pop(pod_uid, None) if host else None
        if host is None or held is None:
            return
        self._holders.remove(pod_uid, node)
        self._count(host, held, -1)
        changed = host.charge(held, -1)
        if host.node is not None:
            self._tables[host.node.pool].write_free(host, changed)
        self._drop_if_empty(host)

    def pools(self) -> Mapping[str, Pool]:
        """Return the known pools by name."""
        return self._pools

    def nodes(self, pool: str | None = None) -> list[str]:
        """Return the names of the known nodes, of one pool or of all, in name order."""
        hosts = self._hosts.values()
        return sorted(h.name for h in hosts if h.node is not None and pool in (None, h.node.pool))

    def unrecorded(self) -> list[Host]:
        """Return what has an inventory and is no known node, in name order."""
        hosts = self._hosts.values()
        return sorted((h for h in hosts if h.node is None and h.devices is not None), key=lambda host: host.name)

    def node_of(self, pod_uid: str) -> str | None:
        """Return the node on which a pod holds something: the first by name if there are several, None if there is none."""
        return self._holders.first(pod_uid)

    def duplicates(self) -> dict[str, tuple[str, ...]]:
        """Return the pods that hold something on more than one node, with those nodes in name order."""
        return self._holders.duplicates()

    def copies(self, pool: str, pod_uid: str) -> Iterator[Allocation]:
        """Yield what a pod holds on nodes of a pool: once, except while a duplicate is being undone."""
        for name in self._holders.all(pod_uid):
            host = self._hosts[name]
            if host.node is not None and host.node.pool == pool:
                yield host.allocations[pod_uid]

    def allocation(self, pod_uid: str) -> Allocation | None:
        """Return what a pod holds on the node that :meth:`node_of` names."""
        node = self.node_of(pod_uid)
        return self._hosts[node].allocations[pod_uid] if node else None

    def held(self, node: str, pod_uid: str) -> Allocation | None:
        """Return what a pod holds on one node."""
        host = self._hosts.get(node)
        return host.allocations.get(pod_uid) if host else None

    def allocations(self, node: str) -> tuple[Allocation, ...]:
        """Return all allocations of a node in order of pod UID."""
        host = self._hosts.get(node)
        return tuple(host.allocations[uid] for uid in sorted(host.allocations)) if host else ()

    def capacity(self, node: str) -> Capacity | None:
        """Return the GPU capacity of a node and what is granted of it; None for an unknown node."""
        host = self._hosts.get(node)
        return host.capacity() if host is not None and host.node is not None else None

    def total(self, pool: str | None = None) -> Capacity:
        """Return the GPU capacity of one pool, or of all known nodes."""
        return Capacity.total(self._hosts[name].capacity() for name in self.nodes(pool))

    def digest(self) -> str:
        """Return a digest of all that decisions can depend on, what is free included, to compare snapshots by.

        Equal events in any order give equal digests; so do an allocation and its release.
        """
        hosts = [
            (
                *(host.name, host.node, host.devices, host.links, host.partitions, host.frozen, host.silent),
                self.allocations(host.name),
                *host.free(),
            )
            for _, host in sorted(self._hosts.items())
        ]
        return blake2b(_ENCODER.encode((self._pools, hosts)), digest_size=16).hexdigest()

    def host(self, name: str) -> Host | None:
        """Return what is known about a node."""
        return self._hosts.get(name)

    def table(self, pool: str) -> Table | None:
        """Return the nodes of a pool as arrays, or None when it has none."""
        table = self._tables.get(pool)
        if table is None or not table.live:
            return None
        table.settle()
        return table

    def fit(self, table: Table, request: GpuRequest, policy: Policy) -> Fit:
        """Return where a request fits in the table of its pool, up to date."""
        return self._views.fit(table, request, policy)

    def reclaim(self, table: Table, pool: str) -> Reclaim:
        """Return who could be made to leave the nodes of a pool; it is still to be brought up to date."""
        return self._views.reclaim(table, pool)

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
        return host

    def _leave(self, host: Host, pool: str) -> None:
        self._tables[pool].leave(host)
        for held in host.allocations.values():
            self.standing.count(pool, held, -1)

    def _count(self, host: Host, held: Allocation, more: int) -> None:
        if host.node is not None:
            self.standing.count(host.node.pool, held, more)

    def _drop_if_empty(self, host: Host) -> None:
        if host.empty:
            del self._hosts[host.name]

    def _pool(self, name: str) -> Pool:
        return self._pools.get(name) or Pool(name=name)

    def _settle_pool(self, before: Pool) -> None:
        """Bring a pool's nodes up to date with it."""
        now = self._pool(before.name)
        same = now.oversubscription == before.oversubscription
        if same and now.max_workers_per_node == before.max_workers_per_node:
            return
        table = self._tables.get(now.name)
        if table is not None:
            for host in table.members():
                self._rebuild(host)

    def _rebuild(self, host: Host) -> None:
        pool = host.node.pool if host.node else ""
        host.rebuild(self._pool(pool), self._kinds.number)
        if host.node is not None and host.row >= 0:
            self._tables[pool].write(host)


def _by_slot(inventory: GpuInventory, devices: tuple[GpuDevice, ...]) -> tuple[GpuLink, ...]:
    """Return the links of an inventory with slots in place of its own numbers, in order of slots."""
    if not inventory.links:
        return ()
    slots = {device.uuid: slot for slot, device in enumerate(devices)}
    slot_of = [slots[device.uuid] for device in inventory.gpus]
    found = []
    for link in inventory.links:
        first, second = sorted((slot_of[link.first], slot_of[link.second]))
        found.append(GpuLink(first, second, link.path, link.nvlinks))
    return tuple(sorted(found, key=lambda link: (link.first, link.second)))
