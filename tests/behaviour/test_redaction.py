"""A log of selectors, gangs, cordoned GPUs and evictions without its names: it replays, and nothing of it can be read back."""

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Record
from bus.streams import DECISION, StreamLimits, ensure_streams
from consumers.allocator.service import Allocator
from deploy.cli.main import main
from deploy.local.server import LocalBus
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.node_rules import NodeRequirement, NodeRules, NodeTerm, Taint, Toleration
from schemas.pod import GpuRequest, Schedule
from schemas.registry import TYPE_NAMES
from schemas.requirements import Gang

POOL = Pool(name="secretpool", preemption="cluster")
NODES, GPUS = 3, 4
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def say(bus: Bus, subject: str, data: Any, name: str) -> None:
    event = Event(id=name, source="/secretsource", type=TYPE_NAMES[type(data)], subject="s", time=NOW, data=data)
    await bus.publisher.publish(subject, codec.encode(event), msg_id=name)


async def pod(bus: Bus, name: str, **request: Any) -> None:
    command = Schedule(
        namespace="secretns", name=name, uid=f"uid-{name}", request=GpuRequest(pool=POOL.name, **request)
    )
    await say(bus, subjects.work("schedule", POOL.name), command, name)


async def until(bus: Bus, enough: Callable[[list[Decision]], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            found: list[Record] = []
            await history.read(bus, DECISION, [">"], found.append)
            if enough([codec.decode_as(Decision, record.payload).data for record in found]):
                return
            await asyncio.sleep(0.05)


async def cluster(bus: Bus) -> None:
    await say(bus, subjects.state("pool", POOL.name), POOL, "p")
    for number in range(NODES):
        name = f"secretnode{number}"
        gpus = [
            GpuDevice(
                uuid=f"GPU-secret-{number}-{index}",
                index=index,
                model="A100",
                tflops_milli=1000,
                vram_bytes=1000,
                pci="secretpci",
            )
            for index in range(GPUS)
        ]
        inventory = GpuInventory(node=name, observed_at=NOW, gpus=gpus, driver="550.54.15")
        await say(bus, subjects.state("gpu", name), inventory, f"g{number}")
        node = Node(
            name=name,
            pool=POOL.name,
            cpu_milli=64_000,
            labels={"secretkey": f"secretteam{number}", "secretrank": str(8 + number)},
            taints=(Taint(key="secrettaint", value="secretvalue", effect="PreferNoSchedule"),),
            cordoned_gpus=(f"GPU-secret-{number}-3",),
        )
        await say(bus, subjects.state("node", name), node, f"n{number}")


async def live(bus: Bus) -> None:
    """Have pods placed by rules of every kind, one wave after the other, until a pod makes room by evicting another."""
    selecting = NodeRules.of(
        selector={"secretkey": "secretteam1"}, tolerations=(Toleration(key="secrettaint", operator="Exists"),)
    )
    rank = NodeRequirement(key="secretrank", operator="Gt", values=("9",))
    await pod(bus, "secretsel", nodes=selecting, tflops_milli=10)
    await pod(bus, "secretnone", nodes=NodeRules.of(selector={"secretkey": "secretelse"}), tflops_milli=10)
    await pod(bus, "node", nodes=NodeRules(required=(NodeTerm(match_expressions=(rank,)),)), tflops_milli=10)
    await pod(bus, "secretword", tflops_milli=10, model_words=("secretmodel",))
    for number in range(2):
        await pod(bus, f"secretgang-{number}", tflops_milli=10, gang=Gang(key="secretns/secretgang", min_members=2))
    await pod(bus, "secretlone", tflops_milli=10, gang=Gang(key="secretns/secretlonely", min_members=3, timeout_s=1))
    await until(bus, lambda made: len({decision.name for decision in made}) == 7)
    for number in range(NODES * GPUS):
        await pod(bus, f"secretlow-{number}", tflops_milli=900, qos="low")
    await until(bus, lambda made: len({decision.name for decision in made}) == 7 + NODES * GPUS)
    await pod(bus, "secrethigh", tflops_milli=1000, qos="high", priority=100)
    await until(bus, lambda made: any(decision.preemption is not None for decision in made))


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """The store of such a run."""
    store = tmp_path_factory.mktemp("redaction") / "store"

    async def run() -> None:
        async with LocalBus(store) as local, await Bus.connect(local.urls, name="test") as bus:
            await ensure_streams(bus, StreamLimits(ledger_revisions=-1))
            await cluster(bus)
            stop, ready = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(Allocator(bus, "secretallocator").run(stop, ready=ready))
            await ready.wait()
            await live(bus)
            stop.set()
            await task

    asyncio.run(run())
    return store


@pytest.fixture(scope="module")
def redacted(log: Path, tmp_path_factory) -> tuple[Path, Path]:
    """The log without its names, as a file and as a store."""
    place = tmp_path_factory.mktemp("away")
    file, store = place / "log.gz", place / "store"
    assert main(["export", str(file), "--redact", "--store", str(log)]) == 0
    assert main(["import", str(file), "--store", str(store)]) == 0
    return file, store


def test_it_replays_bit_for_bit(log: Path, redacted: tuple[Path, Path], capsys) -> None:
    found = []
    for store in (log, redacted[1]):
        capsys.readouterr()
        assert main(["replay", "--verify", "--store", str(store), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["reproduced"] == found[0]["decisions"] == found[1]["reproduced"] == found[1]["decisions"] > 0
    assert not any(found[1][field] for field in ("different", "violations", "unexplained", "undecodable", "notes"))


def test_nothing_of_the_original_is_left(redacted: tuple[Path, Path]) -> None:
    text = gzip.decompress(redacted[0].read_bytes()).decode().lower()
    assert "secret" not in text
    assert "x0000001" in text
    assert "550.54.15" in text


def test_what_is_exported_again_is_still_known_as_redacted(redacted: tuple[Path, Path], tmp_path, capsys) -> None:
    again, store = tmp_path / "again.gz", tmp_path / "store"
    assert main(["export", str(again), "--store", str(redacted[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["redacted"] is True
    assert main(["import", str(again), "--store", str(store)]) == 0
    assert main(["audit", "verify", "--store", str(store)]) == 2
    assert "redacted" in capsys.readouterr().err


def test_a_time_that_ends_before_it_begins_is_refused(log: Path, tmp_path, capsys) -> None:
    file = tmp_path / "none.gz"
    assert main(["export", str(file), "--from", "1m", "--to", "2h", "--store", str(log)]) == 2
    assert "later than --to 2h" in capsys.readouterr().err
    assert not file.exists()


def test_an_import_that_is_killed_leaves_no_store(redacted: tuple[Path, Path], tmp_path, capsys) -> None:
    store, part = tmp_path / "store", tmp_path / "store.part"
    command = [sys.executable, "-c", _KILLED, str(redacted[0]), str(store)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == -9
    assert part.exists()
    assert not store.exists()
    assert main(["import", str(redacted[0]), "--store", str(store)]) == 2
    assert "store.part" in capsys.readouterr().err


_KILLED = """
import os, signal, sys
from deploy.cli.main import main
from deploy.replay import transfer

async def die(bus, entries):
    os.kill(os.getpid(), signal.SIGKILL)  # the server dies with us

transfer.put_back = die
sys.exit(main(["import", sys.argv[1], "--store", sys.argv[2]]))
"""


def test_a_first_line_without_end_is_refused(tmp_path, capsys) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(b'{"format":"' + b"x" * 50_000_000))
    assert main(["import", str(file), "--store", str(tmp_path / "store")]) == 2
    assert "no log that `gpubus export` wrote" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]
