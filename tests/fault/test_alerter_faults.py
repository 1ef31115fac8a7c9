"""Alerters that are killed while they hold a tick, at every step of an evaluation: no streak is lost or counted twice."""

import asyncio
import multiprocessing
import os
import random
import signal
from datetime import UTC, datetime

import msgspec
import pytest

from bus import codec, records, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import ALERT, STATE, TICK
from consumers.alerter.rulebook import ACTIVE
from consumers.alerter.rules import CompiledRule, digest
from consumers.alerter.streaks import evaluated, failed
from consumers.metrics.settings import store
from consumers.metrics.store import MetricsStore
from consumers.recorder.service import Recorder
from deploy.local.server import LocalServer
from schemas.alert import AlertNotice, AlertRule, RuleSet, RuleState
from schemas.event import Event
from schemas.registry import TYPE_NAMES, Tick
from schemas.usage import GpuSample, NodeUsage
from tests.conftest import eventually
from tests.fault import alerter_process
from tests.stores.greptime import GreptimeStandIn

pytestmark = [pytest.mark.fault, pytest.mark.slow]

STEPS = ("taken", "read", "queried", "written", "told")
KILLS = int(os.environ.get("GPUBUS_ALERTER_KILLS", "10"))
SPACING_S = 1.05
"""Between two ticks: a quarter of the rule's interval, below which a tick counts as a second one of the same."""

RULE = AlertRule(
    name="Hot",
    query="SELECT uuid FROM tf_gpu_usage GROUP BY uuid HAVING arg_max(temperature, ts) > {{ .Threshold }}",
    threshold=80.0,
    evaluation_interval="4s",
    consecutive_count=2,
    summary="{{ .uuid }}",
    alert_target_instance="{{ .uuid }}",
)
SAY_S = 0.3
LATEST = f"{RULE.query.replace('{{ .Threshold }}', '80')} ORDER BY uuid"
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.fault.alerter_process", "duckdb", "httpx"])


class Bench:
    """Ticks by hand, GPUs that say how hot they are, and everything that the alerters wrote."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.hot: list[str] = []
        self.said = 0
        self.states: list[RuleState] = []
        self.notices: list[AlertNotice] = []
        self.followers = [
            Follower(bus, STATE, ["gpubus.state.alert.*"], self._on_state),
            Follower(bus, ALERT, ["gpubus.alert.>"], self._on_notice),
        ]

    def _on_state(self, record: Record) -> None:
        self.states.append(codec.decode_as(RuleState, record.payload).data)

    def _on_notice(self, record: Record) -> None:
        self.notices.append(codec.decode_as(AlertNotice, record.payload).data)

    def event(self, kind: str, data) -> Event:
        return Event(id="test", source="/test", type=kind, subject="s", time=datetime.now(UTC), data=data)

    async def start(self) -> None:
        rules = RuleSet(digest=digest([RULE]), origin="test", revision=1, rules=(RULE,))
        await records.replace(self.bus, ACTIVE, self.event("gpubus.rules.v1", rules), expected=0)
        for follower in self.followers:
            await follower.start()

    async def gpus(self) -> None:
        """Say how hot they are, again and again."""
        while True:
            samples = tuple(GpuSample(uuid=uuid, temperature_c=95 if uuid in self.hot else 20) for uuid in ("a", "b"))
            usage = NodeUsage(node="n", at=datetime.now(UTC), gpus=samples)
            event = self.event(TYPE_NAMES[NodeUsage], usage)
            await self.bus.publisher.publish(subjects.usage_gpu("n"), codec.encode(event))
            self.said += 1
            await asyncio.sleep(SAY_S)

    async def heat(self, hot: list[str], metrics: MetricsStore) -> None:
        """Have these GPUs hot and the others not, and wait until that is recorded."""
        self.hot = hot
        async with asyncio.timeout(30):
            while [row["uuid"] for row in (await metrics.query(LATEST, timeout=5)).named()] != hot:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def tick(self) -> None:
        event = self.event("gpubus.tick.v1", Tick(name=RULE.name))
        await self.bus.publisher.publish(subjects.work("tick", "alert", RULE.name), codec.encode(event))

    async def settled(self) -> None:
        """Wait until every tick was evaluated, told and acknowledged."""
        async with asyncio.timeout(30):
            while await self._ticks():  # noqa: ASYNC110  the server tells nobody
                await asyncio.sleep(0.02)

    async def _ticks(self) -> dict[str, int]:
        info = await self.bus.api(f"STREAM.INFO.{TICK}", {"subjects_filter": "gpubus.work.tick.alert.>"})
        return msgspec.json.decode(info)["state"].get("subjects", {})


async def test_a_killed_alerter_neither_loses_nor_doubles_a_count(bus: Bus, server: LocalServer) -> None:
    chance = random.Random(7)
    bench, found, stop = Bench(bus), [], asyncio.Event()
    await bench.start()
    async with GreptimeStandIn() as stand_in:
        metrics = await store(stand_in.url).open()
        beside = [
            asyncio.create_task(Recorder(bus, "r", metrics).run(stop)),
            gpus := asyncio.create_task(bench.gpus()),
        ]
        await eventually(lambda: bench.said * SAY_S > 4, 30)  # a whole window
        loop, armed = asyncio.get_running_loop(), PROCESSES.Event()

        def spawn(step: str):
            armed.clear()
            process = PROCESSES.Process(target=alerter_process.run, args=(server.url, stand_in.url, step, armed))
            process.start()
            return process

        last_tick = -SPACING_S
        process = None
        try:
            for number in range(KILLS):
                process = spawn(STEPS[number % len(STEPS)])
                await bench.settled()  # it finishes what the one before it left
                hot = [uuid for uuid in ("a", "b") if chance.random() < 0.7]
                await bench.heat(hot, metrics)
                await asyncio.sleep(max(0.0, last_tick + SPACING_S - loop.time()))
                last_tick = loop.time()
                armed.set()
                await bench.tick()
                found.append([{"uuid": uuid} for uuid in hot])
                await asyncio.to_thread(process.join, 30)
                assert process.exitcode == -signal.SIGKILL
            process = spawn("never")
            await bench.settled()
        finally:
            if process is not None and process.is_alive():
                process.kill()
                process.join()
            gpus.cancel()
            stop.set()
            await asyncio.wait(beside)
            await metrics.close()
    await eventually(lambda: len(bench.states) >= KILLS)
    compare(bench, found)
    for follower in bench.followers:
        await follower.stop()


def compare(bench: Bench, found: list[list[dict]]) -> None:
    """One process that nobody kills, over the same evaluations."""
    assert len(bench.states) == len(found)  # each tick was counted, and counted once
    assert sum(not observed.failures for observed in bench.states) > len(found) / 2
    compiled, state, notices = CompiledRule(RULE), RuleState(rule=RULE.name), []
    for rows, observed in zip(found, bench.states, strict=True):
        if observed.failures:  # a machine that slept made a tick late, which must move no streak
            state = failed(compiled, state, observed.error, slot=observed.slot)
        else:
            state = evaluated(compiled, state, rows, slot=observed.slot)
        assert observed == state
        if state.notice is not None:
            notices.append(state.notice)
    assert bench.notices == notices
    assert notices
