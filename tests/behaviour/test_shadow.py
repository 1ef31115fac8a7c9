"""A shadow decides about the same pods by other rules, beside the allocators, and touches nothing of theirs."""

import asyncio
import json

import pytest

from bus import codec, history
from bus.connection import Bus
from bus.follower import Record
from bus.streams import JOURNAL, SHADOW, stream_info
from consumers.allocator.service import Allocator
from consumers.allocator.shadow.rules import Rules
from consumers.allocator.shadow.service import Shadow
from deploy.cli.main import main
from deploy.local.server import LocalServer
from producers.simulator.generator import generate
from producers.simulator.service import Simulator
from schemas.cluster import Pool
from schemas.decision import Decision
from tests.conftest import eventually


async def report(server: LocalServer, capsys, *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(main, ["shadow", "report", *arguments, "--nats", server.url])
    return code, capsys.readouterr().out


async def test_other_rules_are_tried_on_what_happens_now(bus: Bus, server: LocalServer, capsys) -> None:
    assert (await report(server, capsys))[0] == 1
    stop, pool = asyncio.Event(), Pool(name="p", placement="LowLoadFirst")
    ready = [asyncio.Event() for _ in range(3)]
    same = Shadow(bus, "same", Rules("as it is"))
    other = Shadow(bus, "other", Rules("CompactFirst", "CompactFirst"))
    roles = [asyncio.create_task(Allocator(bus, "a").run(stop, ready=ready[0]))]
    roles += [
        asyncio.create_task(shadow.run(stop, ready=one)) for shadow, one in zip((same, other), ready[1:], strict=True)
    ]
    await asyncio.gather(*(one.wait() for one in ready))
    simulator = Simulator(bus, generate(24, 120, seed=3), pool=pool, rate=300, seed=3)
    stop_when_finished = asyncio.Event()
    playing = asyncio.create_task(simulator.run(stop_when_finished))
    await eventually(simulator.finished.is_set, timeout=60)
    stop_when_finished.set()
    await playing
    heard = (await stream_info(bus, JOURNAL)).state.last_seq
    await eventually(lambda: min(shadow.statistics().journal for shadow in (same, other)) >= heard)
    stop.set()
    await asyncio.gather(*roles)

    code, shown = await report(server, capsys, "--json")
    found = {one["shadow"]: one for one in json.loads(shown)}
    assert code == 0
    assert found["same"]["elsewhere"] == found["same"]["only_shadow"] == found["same"]["only_real"] == 0
    assert found["same"]["real"] == found["same"]["state"]
    assert found["same"]["same"] > 30
    assert found["other"]["elsewhere"] > 10
    assert found["other"]["real"] == found["same"]["real"]
    assert "in the shadow node" in found["other"]["examples"][0]

    records: list[Record] = []
    await history.read(bus, SHADOW, ["gpubus.shadow.decision.other.>"], records.append)
    decisions = [codec.decode_as(Decision, record.payload).data for record in records]
    assert {decision.allocator for decision in decisions} == {"other"}
    assert {decision.policy for decision in decisions} == {"CompactFirst"}
    assert len(decisions) == found["other"]["decided"] >= 120
    _, text = await report(server, capsys, "other")
    assert "stranded %" in text
    assert (await report(server, capsys, "nobody"))[0] == 1


@pytest.mark.parametrize("wrong", [[], ["--policy", "all"], ["--policy", "Best"], ["--set", "x=1"]])
def test_a_shadow_needs_one_set_of_other_rules(wrong: list[str], capsys) -> None:
    assert main(["run", "shadow", *wrong]) == 2
    assert capsys.readouterr().err
