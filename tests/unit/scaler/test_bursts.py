"""Bursts of pods like those of the published cluster, on a cloud that is late, sends too little, or nothing; no API server.

Time is played. Pods are placed by the engine, the pool is seen through the fold and planned for as by the role itself, and
whoever carries a plan out dies in the middle of many. At every instant what is there and what was claimed keeps the maximum.
"""

import os
import random
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import subjects
from bus.codec import encode
from bus.follower import Record
from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from consumers.scaler.capacity import CLAIM_WITHIN, plan_capacity
from consumers.scaler.claims import Found
from consumers.scaler.noted import noted
from consumers.scaler.pools import Pools
from consumers.scaler.sizes import LEAVING_LABEL, Claim, claim_name
from producers.simulator.build import build_pod
from producers.simulator.generator import generate
from producers.simulator.trace import read_trace
from schemas.capacity import Offer, PoolCapacity
from schemas.catalogue import lookup
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.event import Event
from schemas.kube.resources import CustomResource
from schemas.ledger import NodeRecord
from schemas.node_rules import Taint
from schemas.pod import Pod, Waiting
from schemas.registry import TYPE_NAMES
from tests.unit.allocator.test_defrag_openb import TRACE

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
STEP = timedelta(seconds=20)
MODEL = lookup("V100M32")
GIB = 2**30
OFFERS = tuple(
    Offer(
        instance_type=f"v100-{gpus}", gpus=gpus, model=MODEL.name, tflops_milli=MODEL.tflops_milli,
        vram_bytes=MODEL.vram_bytes, cpu_milli=gpus * 16_000, memory_bytes=gpus * 96 * GIB,
        microdollars=gpus * 3_000_000 - gpus * gpus,
    )
    for gpus in (1, 4, 8)
)  # fmt: skip
MINIMUM = 8


class World:
    """A pool, the cloud that it grows on, and the pods that come and go."""

    def __init__(self, seed: int, most: int) -> None:
        self.dice, self.most, self.now = random.Random(seed), most, BEGIN
        self.pools, self.snapshot = Pools(), Snapshot()
        self.snapshot.put_pool(Pool(name="p"))
        self._seq = 0
        self.waiting: dict[str, Pod] = {}
        self.running: dict[str, str] = {}
        self.claims: dict[str, Claim] = {}
        self.delay: dict[str, int] = {}
        self.nodes: dict[str, int] = {}
        self.closed: set[str] = set()
        self.made: Counter[str] = Counter()
        self.record, self.looks, self.deaths, self.never = PoolCapacity(pool="p"), 0, 0, 0
        self._tell("gpupools")

    def _tell(self, plural: str) -> None:
        def unit(gpus: int) -> dict[str, str]:
            return {"tflops": f"{gpus * MODEL.tflops_milli}m", "vram": str(gpus * MODEL.vram_bytes)}

        over = {"vramExpandToHostMem": 0, "vramExpandToHostDisk": 0, "tflopsOversellRatio": 100}
        capacity = {"minResources": unit(MINIMUM), "maxResources": unit(self.most), "oversubscription": over}
        manager = {"provisioningMode": "Provisioned", "nodeCompaction": {"period": "5m"}}
        spec = {"nodeManagerConfig": manager, "capacityConfig": capacity}
        resource = CustomResource(plural=plural, namespace="", name="p", uid="p", labels={}, annotations={}, spec=spec)
        self._state(("config", plural, "", "p"), resource)

    def _record(self, where: str, data: msgspec.Struct | None) -> Record:
        self._seq += 1
        if data is None:
            return Record(subject=where, seq=self._seq, payload=b"", deleted=True)
        event: Event[Any] = Event(
            id=where, source="/t", type=TYPE_NAMES[type(data)], subject="x", time=self.now, data=data
        )
        return Record(subject=where, seq=self._seq, payload=encode(event))

    def _state(self, names: tuple[str, ...], data: msgspec.Struct | None) -> None:
        self.pools.on_state(self._record(subjects.state(*names), data))

    def _ledger(self, node: str) -> None:
        record = NodeRecord(node=node, txn="t", allocations=self.snapshot.allocations(node), changes=())
        self.pools.on_ledger(self._record(subjects.ledger_node(node), record))

    # Pods

    def come(self, pods: list[Pod]) -> None:
        for pod in pods:
            self.waiting[pod.uid] = pod
            waits = Waiting(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, request=pod.request, reason="InsufficientCompute",
                state_seq=0, ledger_seq=0, since=self.now,
            )  # fmt: skip
            self._state(("waiting", "p", pod.namespace, pod.name), waits)

    def place(self) -> None:
        touched = set()
        for uid, pod in list(self.waiting.items()):
            decision = decide(self.snapshot, pod.request, Policy.of(Pool(name="p")))
            if decision.node:
                self.snapshot.add(decision.node, allocation(pod.command(), decision, self.snapshot))
                self.running[uid] = decision.node
                del self.waiting[uid]
                self._state(("waiting", "p", pod.namespace, pod.name), None)
                touched.add(decision.node)
        for node in touched:
            self._ledger(node)

    def end_all(self) -> None:
        for uid, node in self.running.items():
            self.snapshot.remove(node, uid)
        for node in set(self.running.values()):
            self._ledger(node)
        self.running.clear()

    # The cloud

    def provide(self) -> None:
        for name, claim in self.claims.items():
            if name in self.nodes:
                continue
            self.delay[claim.uid] -= 1
            if not self.delay[claim.uid]:
                gpus = claim.offer.gpus if self.dice.random() < 0.85 else max(claim.offer.gpus - 1, 1)
                self._node(name, claim.offer, gpus)
        for name in self.nodes.keys() - self.claims.keys():
            assert not self.snapshot.allocations(name)  # nobody is on a node that is given back
            self.snapshot.remove_node(name)
            self.snapshot.remove_inventory(name)
            self._state(("node", name), None)
            self._state(("gpu", name), None)
            self.closed.discard(name)
            del self.nodes[name]
        self._within()

    def _within(self) -> None:
        """What is there and what may still come keeps the maximum at this instant."""
        coming = sum(claim.offer.gpus for name, claim in self.claims.items() if name not in self.nodes)
        assert sum(self.nodes.values()) + coming <= self.most

    def _node(self, name: str, offer: Offer, gpus: int) -> None:
        devices = [
            GpuDevice(uuid=f"{name}-{n}", index=n, model=MODEL.name, tflops_milli=MODEL.tflops_milli,
                      vram_bytes=MODEL.vram_bytes)
            for n in range(gpus)
        ]  # fmt: skip
        self.nodes[name] = gpus
        inventory = GpuInventory(node=name, gpus=devices, observed_at=self.now)
        self.snapshot.put_inventory(inventory)
        self._state(("gpu", name), inventory)
        self._put(name, offer)

    def _put(self, name: str, offer: Offer) -> None:
        node = Node(
            name=name, pool="p", cpu_milli=offer.cpu_milli, memory_bytes=offer.memory_bytes,
            taints=(Taint(key=LEAVING_LABEL, value="true", effect="NoSchedule"),) if name in self.closed else (),
        )  # fmt: skip
        self.snapshot.put_node(node)
        self._state(("node", name), node)

    # The scaler

    def look(self) -> None:
        """Plan, write down and do; one time of three whoever does it dies somewhere on the way."""
        self.looks += 1
        found = Found(
            claims=tuple(self.claims.values()), refused=(), names=frozenset(self.claims), bound=frozenset(self.nodes)
        )
        view = self.pools.view("p", self.record, found, OFFERS, self.now)
        plan = plan_capacity(view, self.now)
        after = noted(view, plan, self.record, found, self.pools.came(self.record, found))
        steps = [
            *(("drop", name) for name in after.given_up), *(("open", one.name) for one in plan.reopen),
            *(("close", one.name) for one in plan.close), *(("drop", one.claim) for one in plan.remove),
            *(("claim", one) for one in plan.orders),
        ]  # fmt: skip
        last = len(steps)
        if self.dice.random() < 0.33:
            self.deaths += 1
            last = self.dice.randint(-1, len(steps))  # -1: before it was written down
        if last >= 0:
            self.record = after
        for what, about in steps[: max(last, 0)]:
            self._do(what, about)
            self._within()

    def _do(self, what: str, about: Any) -> None:
        if what == "claim":
            name = claim_name("p", about.number)
            if name in self.claims:
                return  # the API server gives a name once
            uid = f"{name}/{self.made[name]}"
            self.made[name] += 1
            made_at = self.record.claims.get(name, self.now)
            self.claims[name] = Claim(name=name, offer=about.offer, made_at=made_at, node=name, uid=uid)
            self.delay[uid] = self.dice.choice([1, 2, 3, 6, 10, 10**9])
            self.never += self.delay[uid] == 10**9
        elif what == "drop":
            if not self.snapshot.allocations(about):  # as the ledger itself says
                self.claims.pop(about, None)
        else:
            (self.closed.add if what == "close" else self.closed.discard)(about)
            self._put(about, self.claims[about].offer)

    def turn(self) -> None:
        self.now += STEP
        self.provide()
        self.place()
        self.look()


def bursts(which: str, seed: int) -> list[list[Pod]]:
    trace = generate(nodes=60, pods=600, seed=seed) if which == "made" else read_trace(Path(os.environ[TRACE]))
    pods = [build_pod(one, pool="p") for one in trace.pods if one.num_gpu and not one.gpu_spec]
    pods = [one for one in pods if one.request.cpu_milli <= one.request.count * 16_000]
    pods = [one for one in pods if one.request.memory_bytes <= one.request.count * 96 * GIB]
    return [pods[:120], pods[120:300], pods[300:420]]


def asked(pods: list[Pod]) -> int:
    return sum(one.request.count * one.request.compute_milli for one in pods) // 1000 + 1


@pytest.mark.parametrize("which", ["made", *(["published"] if os.environ.get(TRACE) else [])])
@pytest.mark.parametrize("seed", [1, 2])
def test_bursts_are_absorbed_within_the_maximum_whatever_the_cloud_does_and_whoever_dies(which: str, seed: int) -> None:
    waves = bursts(which, seed)
    most = max(map(asked, waves)) * 5 // 4 + 8
    world = World(seed, most)
    for wave in waves:
        world.come(wave)
        turns = 0
        while world.waiting:
            world.turn()
            turns += 1
            assert turns < 1000, (
                f"{len(world.waiting)} of {len(wave)} pods still wait, held back by {world.record.held}"
            )
        world.end_all()
        turns = 0
        while sum(world.nodes.values()) > MINIMUM + 8 or world.claims.keys() - world.nodes.keys():
            world.turn()
            turns += 1
            assert turns < 1000
        assert sum(world.nodes.values()) >= MINIMUM
    # What never came was given up in the end, so no claim is left without a node, and none was made twice at a time.
    assert world.claims.keys() == world.nodes.keys()
    gpus = [asked(wave) for wave in waves]
    sys.stdout.write(
        f"{which}, seed {seed}: bursts of {gpus} GPUs, at most {most}: {world.looks} looks, {world.deaths} deaths, "
        f"{sum(world.made.values())} claims, of which {world.never} never came\n"
    )
    assert (world.deaths > 20, world.never > 0, world.looks * STEP > CLAIM_WITHIN) == (True, True, True)
