"""The simulator as a producer: a cluster on the bus that offers pods, runs what is placed, and ends it again.

Virtual time moves only with the arrival of pods, so a simulation may be as fast as the bus. What is said about one pod is
said in order: created, running, gone, each confirmed before the next.
"""

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from typing import Final

from bus.codec import encode
from bus.connection import Bus
from bus.follower import Follower
from bus.streams import DECISION
from bus.subjects import usage_gpu
from bus.tasks import until_first
from producers.simulator.build import build_pod, pod_uid
from producers.simulator.cluster import Cluster
from producers.simulator.kubelet import Kubelet
from producers.simulator.pace import STEP_S, Pace
from producers.simulator.progress import Progress, latency_ms
from producers.simulator.speaker import Speaker
from producers.simulator.speech import SOURCE, Outgoing, pending, schedule
from producers.simulator.timeline import End, Timeline
from producers.simulator.trace import Trace
from producers.simulator.usage import sample_node
from schemas.cluster import Pool
from schemas.event import Event

log = logging.getLogger("gpubus.simulator")

OFFER_AT_ONCE: Final = 128
"""Most pods in one go. Latency counts from the start of a go, so a long one would make the first pods look slow."""

QUIET_S: Final = 1.0
"""How long the waiting pods must stay the same before we believe that no release will wake one of them any more."""

SAMPLE_AT_ONCE: Final = 8
"""Nodes sampled without a pause; a sample takes tens of microseconds for every pod."""


class Simulator:
    """A cluster that exists on the bus only.

    Example::

        simulator = Simulator(bus, generate(100, 1000, seed=1), pool=Pool(name="a"), rate=200, seed=1)
        running = asyncio.create_task(simulator.run(stop))
        await simulator.finished.wait()
        print(simulator.progress())
    """

    def __init__(
        self,
        bus: Bus,
        trace: Trace,
        *,
        pool: Pool,
        rate: float,
        window: int = 512,
        usage_every_s: float = 5.0,
        seed: int,
    ) -> None:
        """Prepare the simulation; nothing is said before :meth:`run`.

        Args:
            bus: The connection. Streams must exist.
            trace: Nodes, and the pods that come to them.
            pool: The pool that all nodes belong to and all pods ask.
            rate: Pods offered per second of wall time; 0 offers as fast as ``window`` allows.
            window: Most pods offered and not decided at any time.
            usage_every_s: Seconds between two usage samples of a node.
            seed: Seed of the usage curves.

        Raises:
            ValueError: An amount is out of range.
            UnknownModelError: The trace has a GPU model that is not in the catalogue.
        """
        if rate < 0 or window < 1 or usage_every_s <= 0:
            problem = f"rate={rate:g}, window={window}, usage_every_s={usage_every_s:g}"
            raise ValueError(f"{problem}: rate must be 0 or more, window 1 or more, usage_every_s more than 0")
        self._cluster = Cluster(trace, pool)
        self._window = window
        self._usage_every_s = usage_every_s
        self._seed = seed
        pods = {pod_uid(pod.name): pod for pod in trace.pods}
        self._pods = len(pods)
        self._offered = 0
        self._timeline = Timeline(pods)
        self._pace = Pace(rate)
        self._news, self._untold = asyncio.Event(), asyncio.Event()
        self._offering = asyncio.Lock()
        self._telling = False
        self._kubelet = Kubelet(self._timeline, pods.keys(), self._wake)
        self._speaker = Speaker(bus)
        self._follower = Follower(bus, DECISION, ["gpubus.decision.>"], self._kubelet.apply)
        self.finished = asyncio.Event()
        """Set once every pod was offered and decided, every release is confirmed, and no waiting pod moves any more."""

    async def run(self, stop: asyncio.Event) -> None:
        """Simulate until ``stop`` is set; after :attr:`finished` the cluster stays as it is and reports usage.

        Call it once. Outages of the bus are waited out.

        Raises:
            BusError: The bus refuses what is said, or the decisions could not be read at the start.
        """
        tasks = [
            asyncio.create_task(self._play(), name="simulator"),
            asyncio.create_task(self._tell(), name="simulator-tell"),
            asyncio.create_task(self._report(), name="simulator-usage"),
            asyncio.create_task(stop.wait(), name="simulator-stop"),
        ]
        await until_first(*tasks)  # the only other way to end is to fail

    def progress(self) -> Progress:
        """Return how far the simulation has come. Takes a few milliseconds for 100,000 pods."""
        kubelet = self._kubelet
        p50_ms, p99_ms = latency_ms(kubelet.latencies)
        physical = self._cluster.tflops_milli
        return Progress(
            pods=self._pods,
            offered=self._offered,
            undecided=kubelet.undecided,
            allocated=kubelet.allocated,
            waiting=kubelet.waiting,
            running=kubelet.running,
            released=kubelet.released,
            releasing=kubelet.releasing,
            double_started=kubelet.double_started,
            latency_p50_ms=p50_ms,
            latency_p99_ms=p99_ms,
            gpu_allocation_percent=100.0 * kubelet.granted_milli / physical if physical else 0.0,
            events=self._speaker.published,
            finished=self.finished.is_set(),
        )

    async def _play(self) -> None:
        """Announce the cluster, then offer pods as they come due."""
        await self._speaker.say(self._cluster.announcement(datetime.now(UTC)))
        try:
            await self._follower.start()
            while True:
                self._news.clear()
                async with self._offering:
                    offers = self._offer()
                    await self._speaker.say(offers)
                if not offers:
                    await self._rest()
        finally:
            await self._follower.stop()

    async def _tell(self) -> None:
        """Say what became of pods, beside the offers: while one loop waits for its acknowledgements the other works."""
        while True:
            self._untold.clear()
            starts, releases, gone = self._kubelet.take()
            self._telling = bool(starts or releases or gone)
            if self._telling:
                async with self._offering:  # a pod may be decided before its own creation is confirmed
                    pass
                await self._speaker.say(starts)
                await self._speaker.erase(gone)
                await self._speaker.say(releases)
            else:
                self._news.set()
                await self._untold.wait()
                # Decisions come in flocks, and to speak of each by itself costs several times more.
                await asyncio.sleep(STEP_S)

    def _wake(self) -> None:
        self._news.set()
        self._untold.set()

    def _offer(self) -> list[Outgoing]:
        """Let virtual time run over the arrivals that are due, and return what has to be said about them."""
        now, at = time.monotonic(), datetime.now(UTC)
        free = min(self._window - self._kubelet.undecided, self._pods - self._offered, OFFER_AT_ONCE)
        due = self._pace.due(now, free)
        if due <= 0:
            return []
        offers: list[Outgoing] = []
        self._pace.spend(due)
        while due and (event := self._timeline.next()) is not None:
            if isinstance(event, End):
                self._kubelet.end(event.uid)
                continue
            due -= 1
            self._offered += 1
            pod = build_pod(event.pod, pool=self._cluster.pool.name, created_at=at)
            if self._kubelet.admit(pod, now):
                offers += (pending(pod, at), schedule(pod, at))
        return offers

    async def _rest(self) -> None:
        """Wait until the next pod is due, a decision makes room for it, or there is nothing left to happen."""
        kubelet = self._kubelet
        pause: float | None = None
        if self._offered < self._pods:
            if kubelet.undecided < self._window:
                await asyncio.sleep(self._pace.wait_s)
                return
        elif not (
            self.finished.is_set() or kubelet.undecided or kubelet.releasing or self._untold.is_set() or self._telling
        ):
            pause = QUIET_S - (time.monotonic() - kubelet.waiting_changed_at) if kubelet.waiting else 0.0
            if pause <= 0:
                self.finished.set()
                log.info("simulation finished: %s", self.progress())
                pause = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._news.wait()

    async def _report(self) -> None:
        """Play the agents of the nodes. A sample that the bus did not take is not repeated: the next one is better.

        Agents do not speak all at once, and what is due to pods must not wait until all have spoken.
        """
        tick = 0
        await asyncio.sleep(self._usage_every_s)
        while True:
            tick += 1
            begun = time.monotonic()
            busy = [node for node in self._kubelet.nodes if node in self._cluster.inventories]
            for first in range(0, len(busy), SAMPLE_AT_ONCE):
                due = begun + self._usage_every_s * first / len(busy)
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
                samples = [self._sample(node, tick) for node in busy[first : first + SAMPLE_AT_ONCE]]
                if not await self._speaker.try_to_say(samples):
                    break
            await asyncio.sleep(max(begun + self._usage_every_s - time.monotonic(), 0.0))

    def _sample(self, node: str, tick: int) -> Outgoing:
        at = datetime.now(UTC)
        held = self._kubelet.nodes.get(node, {})
        event = Event(
            id=f"usage:{node}:{at.isoformat(timespec='milliseconds')}",
            source=SOURCE,
            type="gpubus.usage.v1",
            subject=node,
            time=at,
            data=sample_node(self._cluster.inventories[node], held.values(), tick=tick, seed=self._seed, at=at),
        )
        return usage_gpu(node), encode(event), event.id
