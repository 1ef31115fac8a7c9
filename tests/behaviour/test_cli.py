"""The reading commands of ``gpubus`` against a real nats-server: text, JSON, exit codes, and what goes wrong."""

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from bus import codec, subjects
from bus.connection import Bus
from bus.deadletter import bury, list_letters
from bus.streams import StreamLimits, ensure_streams, stream_info
from consumers.allocator.engine import Policy, Snapshot, decide
from deploy.cli import connect
from deploy.cli.history import narrowed, sources
from deploy.cli.main import main
from deploy.local.server import LocalBus, LocalServer, free_port
from schemas.cluster import GpuDevice, GpuInventory, Node, Oversubscription, Pool
from schemas.deadletter import DeadLetter
from schemas.decision import Attempt, Basis
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod, Schedule, Waiting
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 11, 30, 12, 0, 0, 123_000, tzinfo=UTC)
GIB = 1 << 30
NODE, OTHER = "gpu-1.rack-2.example.com", "ノード-é"
POD = "trainer-0.ml"


@pytest.fixture
def cli(capsys):
    """Run a command line in a thread, as its own process would, and return its exit code and what it printed."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, arguments)
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def ask(cli, server):
    """As ``cli``, with ``--nats`` of the test's server."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        return await cli(*arguments, "--nats", server.url)

    return run


def event(data: msgspec.Struct, identity: str, at: datetime = NOW) -> Event:
    return Event(id=identity, source="/test", type=TYPE_NAMES[type(data)], subject="x", time=at, data=data)


async def say(bus: Bus, subject: str, data: msgspec.Struct, identity: str, at: datetime = NOW) -> int:
    return (await bus.publisher.publish(subject, codec.encode(event(data, identity, at)), msg_id=identity)).seq


def gpus(node: str, count: int = 2) -> list[GpuDevice]:
    return [
        GpuDevice(uuid=f"GPU-{node[:5]}-{i}", index=i, model="H100", tflops_milli=989_500, vram_bytes=80 * GIB)
        for i in range(count)
    ]


async def populate(bus: Bus) -> None:
    """Two nodes in a pool, one pod placed by the engine, one that fits nowhere."""
    pool = Pool(name="train", oversubscription=Oversubscription(tflops_ratio=200))
    snapshot = Snapshot()
    snapshot.put_pool(pool)
    await say(bus, subjects.state("pool", "train"), pool, "pool")
    for i, name in enumerate((NODE, OTHER)):
        node = Node(name=name, pool="train", cpu_milli=64_000, memory_bytes=512 * GIB, unschedulable=bool(i))
        inventory = GpuInventory(node=name, gpus=gpus(name), observed_at=NOW)
        snapshot.put_node(node)
        snapshot.put_inventory(inventory)
        await say(bus, subjects.state("node", name), node, f"node{i}")
        await say(bus, subjects.state("gpu", name), inventory, f"gpu{i}")
    asked = GpuRequest(pool="train", compute_milli=500, vram_bytes=16 * GIB)
    known = {
        "namespace": "ml", "name": POD, "pod_uid": "u1", "allocator": "a-1", "duration_us": 312,
        "basis": Basis(state=5, ledger=0, ordinal=7),
    }  # fmt: skip
    placed = msgspec.structs.replace(decide(snapshot, asked, Policy.of(pool)), **known)
    lost = msgspec.structs.replace(
        placed,
        outcome="unschedulable",
        node="",
        gpus=(),
        reason="NodeNotReady",
        message="0 of 2 nodes fit",
        candidates=(),
    )
    overtaken = (Attempt(node=OTHER, gpus=placed.gpus, decided=5, dropped=6),)
    placed = msgspec.structs.replace(placed, attempts=overtaken)
    await say(bus, subjects.decision("ml", POD), lost, "d1", NOW - timedelta(hours=1))
    await say(bus, subjects.decision("ml", POD), placed, "d2")
    held = Allocation(pod_uid="u1", namespace="ml", name=POD, pool="train", gpus=placed.gpus, cpu_milli=4000)
    await say(bus, subjects.ledger_node(NODE), NodeRecord(node=NODE, txn="t1", allocations=(held,), changes=()), "t1")
    big = GpuRequest(pool="train", count=8)
    refused = decide(snapshot, big, Policy.of(pool))
    refused = msgspec.structs.replace(refused, **known | {"name": "big", "pod_uid": "u2"})
    await say(bus, subjects.decision("ml", "big"), refused, "d3")
    waiting = Waiting(
        namespace="ml", name="big", uid="u2", request=big, reason=refused.reason, state_seq=5, ledger_seq=0, since=NOW
    )
    await say(bus, subjects.state("waiting", "train", "ml", "big"), waiting, "w")


# What pods are told.


async def test_why_explains_a_placement(bus, ask):
    await populate(bus)
    code, out, err = await ask("why", f"ml/{POD}")
    assert (code, err) == (0, "")
    assert out.startswith(f"ml/{POD}: allocated on {NODE}\n")
    for part in (
        "by a-1 in 312 us", "STATE 5, LEDGER 0, ordinal 7", "NodeCompactGPULowLoad (hash ", "GPU-gpu-1-0", "494.75",
        "NodeNotReady", OTHER, "Best candidates", "overtaken", f"gpu 0 on {NODE}, 494.75 TFLOPS, 16 GiB VRAM, since LEDGER 1",
    ):  # fmt: skip
        assert part in out, part
    assert not set(out) & set("─│┏━\x1b")


async def test_why_as_json_holds_what_the_text_says(bus, ask):
    await populate(bus)
    told = json.loads((await ask("why", f"ml/{POD}", "--json"))[1])
    assert [decision["outcome"] for decision in told["decisions"]] == ["allocated"]
    assert told["decisions"][0]["time"] == "2026-11-30T12:00:00.123000Z"
    assert told["allocation"]["node"] == NODE
    assert told["allocation"]["since"] == 1
    assert told["waiting"] is None
    told = json.loads((await ask("why", f"ml/{POD}", "--json", "--all"))[1])
    assert [decision["outcome"] for decision in told["decisions"]] == ["allocated", "unschedulable"]
    text = (await ask("why", f"ml/{POD}", "--all"))[1]
    assert "Earlier decisions" in text
    assert "2026-11-30T11:00:00.123Z" in text


async def test_why_says_what_a_waiting_pod_lacks_and_what_helps(bus, ask):
    await populate(bus)
    code, out, _ = await ask("why", "ml/big")
    assert code == 0
    assert "ml/big: unschedulable" in out
    assert "TooFewGpus - The node has fewer GPUs than asked for." in out
    assert "Ask for fewer GPUs or add larger nodes." in out
    assert "holds  nothing" in out
    assert "waits  since 2026-11-30T12:00:00.123Z for 8 GPUs: TooFewGpus" in out
    assert json.loads((await ask("why", "ml/big", "--json"))[1])["waiting"]["uid"] == "u2"


@pytest.mark.usefixtures("bus")
async def test_why_of_a_pod_that_nobody_knows(ask):
    code, out, err = await ask("why", "ml/nobody")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "gpubus events 'gpubus.decision.>'" in err


async def test_why_of_a_pod_that_is_not_decided_about_yet(bus, ask):
    pod = Pod(namespace="ml", name="new", uid="u", resource_version="1", request=GpuRequest(pool="p"))
    await say(bus, subjects.state("pod", "ml", "new"), pod, "p")
    code, out, _ = await ask("why", "ml/new")
    assert code == 0
    assert "no decision yet" in out
    assert "Pending" in out


@pytest.mark.parametrize("pod", ["trainer", "/x", "x/", "a/b/c", ""])
async def test_why_wants_a_namespace(cli, pod):
    code, _, err = await cli("why", pod)
    assert code == 2
    assert "write NAMESPACE/POD, such as default/" in err


async def test_why_does_not_take_an_unreadable_ledger_for_an_answer(bus, ask):
    await bus.publisher.publish(subjects.ledger_node("a"), b"{broken", msg_id="bad")
    code, out, err = await ask("why", "ml/nobody")
    assert (code, out) == (1, "")
    assert "the ledger of gpubus.ledger.node.a cannot be read: not a NodeRecord event" in err


async def test_why_shows_every_place_a_pod_holds(bus, ask):
    for seq, node in enumerate(("a", "b"), 1):
        held = Allocation(pod_uid=f"u{node}", namespace="ml", name="p", pool="train", since=seq)
        await say(
            bus, subjects.ledger_node(node), NodeRecord(node=node, txn=node, allocations=(held,), changes=()), node
        )
    told = json.loads((await ask("why", "ml/p", "--json"))[1])
    assert told["allocation"]["node"] == "b"
    assert [held["node"] for held in told["other_allocations"]] == ["a"]
    assert (await ask("why", "ml/p"))[1].count("holds") == 2


# What there is.


async def test_state_adds_up(bus, ask):
    await populate(bus)
    code, out, err = await ask("state")
    assert (code, err) == (0, "")
    pools = [line.split() for line in out.splitlines() if line.startswith(("train", "all"))]
    assert pools[0][:6] == ["train", "NodeCompactGPULowLoad", "2", "4", "7916", "(3958)"]
    assert pools[0][6:] == ["494.75", "6.2%", "320", "16", "5.0%", "1", "1"]
    assert pools[1][1:] == pools[0][2:]
    assert "as of STATE 6 and LEDGER 1" in out
    nodes = (await ask("state", "--nodes"))[1]
    assert NODE in nodes
    assert OTHER in nodes
    assert "cordoned" in nodes


async def test_state_as_json_is_exact(bus, ask):
    await populate(bus)
    found = json.loads((await ask("state", "--json"))[1])
    assert found["sequences"] == {"state": 6, "ledger": 1}
    assert found["cluster"]["granted_tflops_milli"] == 494_750
    assert found["cluster"]["schedulable_tflops_milli"] == 2 * found["cluster"]["physical_tflops_milli"] == 7_916_000
    assert [(pool["name"], pool["waiting"], pool["pods"]) for pool in found["pools"]] == [("train", 1, 1)]
    node = found["nodes"][0]
    assert node["name"] == NODE
    assert node["gpus"][0]["free_vram_bytes"] == 64 * GIB
    assert node["free_cpu_milli"] == 60_000
    assert [pod["name"] for pod in node["pods"]] == [POD]


async def test_state_of_one_node(bus, ask):
    await populate(bus)
    code, out, _ = await ask("state", "--node", NODE)
    assert code == 0
    assert f"ml/{POD}" in out
    assert "GPU-gpu-1-1" in out
    code, _, err = await ask("state", "--node", "nope")
    assert code == 1
    assert "gpubus state --nodes" in err


async def test_state_says_what_it_could_not_count(bus, ask):
    await populate(bus)
    await bus.publisher.publish(subjects.ledger_node(OTHER), b"{broken", msg_id="bad")
    held = Allocation(pod_uid="u9", namespace="ml", name="gone", pool="train")
    await say(bus, subjects.ledger_node("gone"), NodeRecord(node="gone", txn="t", allocations=(held,), changes=()), "t")
    code, out, err = await ask("state", "--nodes")
    assert code == 0
    assert "cordoned, frozen" in out
    assert "LEDGER 2" in err
    assert "1 nodes are frozen" in err
    assert "1 allocations are on 1 unknown nodes and in no total: gone" in err
    found = json.loads((await ask("state", "--json"))[1])
    assert found["nodes"][1]["frozen"]
    assert [entry["sequence"] for entry in found["unreadable"]] == [2]
    assert [entry["node"] for entry in found["unplaced"]] == ["gone"]


@pytest.mark.usefixtures("bus")
async def test_state_lists_nodes_that_only_their_agents_speak_of(bus, ask):
    await populate(bus)
    before = json.loads((await ask("state", "--json"))[1])
    await say(bus, subjects.state("gpu", "lone"), GpuInventory(node="lone", gpus=gpus("lone"), observed_at=NOW), "lone")
    held = Allocation(pod_uid="u9", namespace="ml", name="left", pool="train")
    await say(bus, subjects.ledger_node("lone"), NodeRecord(node="lone", txn="t", allocations=(held,), changes=()), "t")
    code, out, err = await ask("state", "--nodes")
    assert code == 0
    assert re.search(r"^lone\s+no node record\s+2 ", out, re.MULTILINE)
    assert "1 nodes have GPUs and no node record (lone): they take no pods" in err
    found = json.loads((await ask("state", "--json"))[1])
    assert (found["cluster"], found["pools"]) == (before["cluster"], before["pools"])
    assert found["nodes"][:-1] == before["nodes"]
    assert found["nodes"][-1].keys() == before["nodes"][0].keys()
    assert [(n["name"], n["recorded"], len(n["gpus"]), len(n["pods"])) for n in found["nodes"]][1:] == [
        (OTHER, True, 2, 0),
        ("lone", False, 2, 1),
    ]
    code, out, _ = await ask("state", "--node", "lone")
    assert code == 0
    assert "GPU-lone-1" in out
    node = Node(name="lone", pool="train", cpu_milli=64_000)
    await say(bus, subjects.state("node", "lone"), node, "late")
    found = json.loads((await ask("state", "--json"))[1])
    assert found["cluster"]["nodes"] == before["cluster"]["nodes"] + 1
    assert all(entry["recorded"] for entry in found["nodes"])


async def test_an_answer_that_cannot_be_written_is_one_line(bus):
    await populate(bus)
    with Path("/dev/full").open("w") as full:  # noqa: ASYNC230  a device
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deploy.cli.main", "state", "--json", "--nats", bus.client.connected_url.geturl()),
            stdout=full,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    assert (process.returncode, err) == (3, b"gpubus: the answer could not be written: No space left on device\n")


@pytest.mark.usefixtures("bus")
async def test_state_of_an_empty_bus(ask):
    code, out, _ = await ask("state")
    assert code == 0
    assert "as of STATE 0 and LEDGER 0" in out


# What is said.


async def test_events_are_decoded_line_by_line_in_the_order_they_were_stored(bus, ask):
    await populate(bus)
    code, out, err = await ask("events", "--no-follow")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 10
    assert f"state/node/{NODE}  gpubus.node.v1  pool train, 64 CPU, 512 GiB, ready" in lines[1]
    assert f"decision/ml/{POD}  gpubus.decision.v1  allocated on {NODE} gpu 0" in lines[6]
    assert "+0 -0, 1 allocations" in lines[7]
    assert lines[9].endswith("waits: TooFewGpus, asks for 8 GPUs")
    assert [line[:24] for line in lines] == sorted(line[:24] for line in lines)


async def test_events_as_json_are_what_was_published(bus, ask):
    await populate(bus)
    out = (await ask("events", "gpubus.state.node.>", "--all", "--no-follow", "--json"))[1]
    told = [codec.decode(line.encode()) for line in out.splitlines()]
    assert [said.data.name for said in told] == [NODE, OTHER]


async def test_events_can_begin_anywhere(bus, ask):
    for i in range(600):  # more than one read, with other subjects in between
        name = f"n{i}" if i % 3 else f"pool{i}"
        data = Node(name=name) if i % 3 else Pool(name=name)
        subject = subjects.state("node" if i % 3 else "pool", name)
        await bus.publisher.publish_all([(subject, codec.encode(event(data, name)), name)])

    async def names(*arguments: str) -> list[str]:
        code, out, _ = await ask("events", "gpubus.state.node.*", "--no-follow", "--json", *arguments)
        assert code == 0
        return [json.loads(line)["data"]["name"] for line in out.splitlines()]

    every = [f"n{i}" for i in range(600) if i % 3]
    assert await names() == await names("--all") == await names("--since", "1") == await names("--since", "1h") == every
    assert await names("--last", "5") == every[-5:]
    assert await names("--last", "100000") == every
    assert await names("--since", "599") == ["n598", "n599"]
    assert await names("--since", "now") == await names("--since", "0s") == []
    assert await names("--all", "--count", "2") == ["n1", "n2"]
    assert await names("--last", "5", "-c", "2") == every[-5:-3]
    assert await names("--since", "99999d") == every


async def test_events_follow_and_reading_a_queue_takes_nothing(bus, ask):
    for i in range(3):
        command = Schedule(namespace="ml", name=f"p{i}", uid=f"u{i}", request=GpuRequest(pool="train"))
        await say(bus, subjects.work("schedule", "train"), command, f"s{i}")
    following = asyncio.create_task(ask("events", "gpubus.work.>", "--last", "1", "--count", "2", "--json"))
    await asyncio.sleep(0.5)
    await say(
        bus,
        subjects.work("schedule", "train"),
        Schedule(namespace="ml", name="late", uid="u", request=GpuRequest(pool="train")),
        "late",
    )
    code, out, _ = await asyncio.wait_for(following, 10)
    assert code == 0
    assert [json.loads(line)["data"]["name"] for line in out.splitlines()] == ["p2", "late"]
    info = json.loads(await bus.api("STREAM.INFO.WORK"))["state"]
    assert (info["messages"], info["consumer_count"]) == (4, 0)


@pytest.mark.fault
async def test_events_go_on_after_the_server_was_away(bus, ask, server):
    following = asyncio.create_task(ask("events", "gpubus.state.>", "--count", "1", "--json"))
    await asyncio.sleep(0.7)
    await server.stop()
    await asyncio.sleep(0.5)
    await server.start()
    await say(bus, subjects.state("node", "a"), Node(name="a"), "a")
    code, out, _ = await asyncio.wait_for(following, 20)
    assert code == 0
    assert json.loads(out)["data"]["name"] == "a"


async def test_what_is_no_event_is_shown_as_such_and_cannot_steer_a_terminal(bus, ask):
    await bus.publisher.publish(subjects.state("node", "a"), b"\xff\x1b[2J{", msg_id="1")
    await bus.publisher.publish(subjects.state("node", "b"), b"", msg_id="2", headers={"Nats-TTL": "60s"})
    await say(bus, subjects.state("node", "evil\x1b[2J\nname"), Node(name="x"), "3")
    pretty = json.dumps(json.loads(codec.encode(event(Node(name="é"), "4"))), indent=2).encode()
    await bus.publisher.publish(subjects.state("node", "c"), pretty, msg_id="4")
    out = (await ask("events", "--no-follow"))[1]
    lines = out.splitlines()
    assert "\x1b" not in out
    assert len(lines) == 4
    assert "undecodable  not a CloudEvent" in lines[0]
    assert lines[1].endswith("state/node/b  deleted")
    assert "evil\\x1b[2J\\nname" in lines[2]
    rows = [json.loads(line) for line in (await ask("events", "--no-follow", "--json"))[1].splitlines()]
    assert rows[0]["payload_base64"] == "/xtbMkp7"
    assert rows[1] == {"stream": "STATE", "sequence": 2, "subject": "gpubus.state.node.b", "deleted": True}
    assert rows[3]["data"]["name"] == "é"


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpubus.nodes.a",), "WORD is one of state, ledger, "),
        (("decision.>",), "it is gpubus.WORD."),
        (("gpubus..x",), "words joined by dots"),
        (("gpubus.state.no*",), "words joined by dots"),
        (("gpubus.>.state",), "words joined by dots"),
        (("--all", "--last", "3"), "keep one of them"),
        (("--since", "yesterday"), "an age such as 15m"),
        (("--since", "5"), "the subject covers STATE, LEDGER"),
        (("--last", "0"), "--last"),
        (("--nats", "http://x"), "no NATS URL"),
        (("--nats", "nats://u:secret@h:99999"), "nats://***@h:99999"),
        (("--store", "/nowhere/at/all"), "is no directory"),
        (("--nats", "nats://x", "--store", "/dev"), "keep one of them"),
        (("--colour",), "see `gpubus events --help`"),
    ],
)
async def test_events_refuse_in_one_line_what_makes_no_sense(cli, server, monkeypatch, arguments, says):
    monkeypatch.setenv("GPUBUS_NATS", server.url)
    code, out, err = await cli("events", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_patterns_meet():
    assert narrowed("gpubus.>", "gpubus.state.>") == "gpubus.state.>"
    assert narrowed("gpubus.*.node.a", "gpubus.state.>") == "gpubus.state.node.a"
    assert narrowed("gpubus.state", "gpubus.state.>") is None
    assert narrowed("gpubus.work.*", "gpubus.work.schedule.>") is None
    assert sources("gpubus.work.tick.>") == [("TICK", "gpubus.work.tick.>")]
    assert dict(sources("gpubus.*.>")).keys() >= {
        "STATE",
        "LEDGER",
        "DECISION",
        "USAGE",
        "WORK",
        "TICK",
        "CAPACITY",
        "DEAD",
    }


# What died.


async def kill(bus: Bus, sequence: int, payload: bytes, stream: str = "WORK") -> None:
    subject = subjects.work("schedule", "pool.with.dots") if stream == "WORK" else subjects.ledger_node(NODE)
    letter = DeadLetter(
        stream=stream,
        subject=subject,
        sequence=sequence,
        consumer="allocator",
        deliveries=5,
        reason="RuntimeError: boom",
        payload=payload,
        published_at=NOW,
        headers={"Nats-Msg-Id": "m"},
    )
    await bury(bus, letter)


async def test_dead_letters_are_listed_shown_and_retried(bus, ask):
    await kill(bus, 7, '{"é": 1}'.encode())
    await kill(bus, 8, b"\xff\x00")
    code, out, _ = await ask("dead", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["letter", "WORK/7", "WORK/8"]
    assert "work/schedule/pool.with.dots" in out
    assert [letter["sequence"] for letter in json.loads((await ask("dead", "list", "--json"))[1])] == [7, 8]
    shown = (await ask("dead", "show", "WORK/7"))[1]
    assert "RuntimeError: boom" in shown
    assert "header Nats-Msg-Id" in shown
    assert '{"é": 1}' in shown
    assert "ff 00" in (await ask("dead", "show", "WORK/8"))[1]
    found = json.loads((await ask("dead", "show", "WORK/8", "--json"))[1])
    assert (found["payload"], found["payload_base64"]) == (None, "/wA=")
    code, out, _ = await ask("dead", "retry", "WORK/7")
    assert code == 0
    assert "published again on gpubus.work.schedule.pool=2Ewith=2Edots" in out
    assert (await stream_info(bus, "WORK")).state.messages == 1
    assert (await ask("dead", "retry", "--all"))[0] == 0
    assert (await stream_info(bus, "WORK")).state.messages == 2
    assert (await ask("dead", "list"))[1] == "no dead letters\n"


async def test_what_would_replace_newer_truth_is_not_retried(bus, ask):
    await kill(bus, 3, b"old", stream="LEDGER")
    await kill(bus, 4, b"command")
    code, out, _ = await ask("dead", "retry", "--all", "--json")
    assert code == 1
    assert [bool(result["error"]) for result in json.loads(out)] == [True, False]
    code, _, err = await ask("dead", "retry", "LEDGER/3")
    assert code == 1
    assert "would replace what is newer" in err
    assert [event.data.sequence async for event in list_letters(bus)] == [3]
    assert (await ask("dead", "drop", "LEDGER/3"))[:2] == (0, "LEDGER/3: dropped\n")
    assert [event.data.sequence async for event in list_letters(bus)] == []
    assert (await stream_info(bus, "LEDGER")).state.messages == 0


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "WORK/99"), 1, "no dead letter WORK/99: `gpubus dead list`"),
        (("retry", "WORK/99"), 1, "no dead letter WORK/99"),
        (("drop", "WORK/99"), 1, "no dead letter WORK/99"),
        (("show", "WORK"), 2, "write STREAM/SEQ"),
        (("retry",), 2, "or --all"),
        (("retry", "WORK/1", "--all"), 2, "or --all"),
    ],
)
async def test_dead_letters_that_are_not_there(ask, arguments, code, says):
    got, out, err = await ask("dead", *arguments)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert says in err


# Which bus.


async def test_an_unreachable_bus_is_one_line_and_exit_3(cli, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 0.4)
    url = f"nats://me:secret@127.0.0.1:{free_port()}"
    for arguments in (["state"], ["why", "a/b"], ["events"], ["dead", "list"]):
        code, out, err = await cli(*arguments, "--nats", url)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "NATS is unreachable" in err
        assert "secret" not in err


async def test_a_server_of_somebody_else_is_not_written_to(cli, server):
    code, _, err = await cli("state", "--nats", server.url)
    assert code == 3
    assert "no gpubus streams" in err
    async with await Bus.connect(server.url, name="test") as bus:
        assert json.loads(await bus.api("STREAM.NAMES"))["total"] == 0


async def test_servers_come_from_options_and_environment(monkeypatch):
    monkeypatch.delenv("GPUBUS_NATS", raising=False)
    assert connect.servers(None) == ["nats://127.0.0.1:4222"]
    monkeypatch.setenv("GPUBUS_NATS", "a:1, tls://b:2")
    assert connect.servers(None) == ["nats://a:1", "tls://b:2"]
    assert connect.servers(["x", "y:5,z"]) == ["nats://x", "nats://y:5", "nats://z"]


async def test_a_stopped_store_can_be_read(cli, store):
    server = LocalServer(store)
    await server.start()
    async with await Bus.connect(server.url, name="test") as bus:
        await ensure_streams(bus)
        await populate(bus)
        code, _, err = await cli("state", "--store", str(store))
        assert code == 3
        assert "in use by another gpubus" in err
    await server.stop()
    for _ in range(2):  # and again: nothing is left behind
        code, out, _ = await cli("state", "--json", "--store", str(store))
        assert code == 0
        assert json.loads(out)["sequences"] == {"state": 6, "ledger": 1}


@pytest.mark.slow
async def test_a_stopped_store_of_three_can_be_read(cli, store):
    async with LocalBus(store, replicas=3) as local, await Bus.connect(local.urls, name="test") as bus:
        await ensure_streams(bus, StreamLimits(replicas=3))
        await populate(bus)
    code, out, err = await cli("why", f"ml/{POD}", "--store", str(store), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["allocation"]["node"] == NODE


async def test_what_is_no_store_is_refused_and_left_as_it_was(cli, store, monkeypatch):
    code, _, err = await cli("state", "--store", str(store))
    assert (code, list(store.iterdir())) == (2, [])
    assert "holds no JetStream store" in err
    (store / "n1" / "jetstream").mkdir(parents=True)
    assert "only a part of a store of three" in (await cli("state", "--store", str(store)))[2]
    (store / "jetstream").mkdir()

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # as root every directory can be written to
    code, _, err = await cli("state", "--store", str(store))
    assert (code, err.count("\n")) == (3, 1)
    assert "cannot be written: Permission denied" in err


# The process.


def gpubus(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "deploy.cli.main", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False, **options
    )


async def test_help_teaches_and_is_quick(cli):
    begun = time.perf_counter()
    helped = await asyncio.to_thread(gpubus, "--help")
    assert time.perf_counter() - begun < 1.5  # 0.2 s on an idle machine
    assert helped.returncode == 0
    assert "Three commands" in helped.stdout
    for command in (["events"], ["state"], ["why"], ["dead"], ["dead", "list"], ["dead", "show"], ["dead", "retry"]):
        assert "Example" in (await cli(*command, "--help"))[1]
    assert (await cli("dead"))[1] == (await cli("dead", "--help"))[1]
    assert (await cli())[0] == 0


async def test_ctrl_c_ends_quietly_with_130(bus, server):
    command = [sys.executable, "-m", "deploy.cli.main", "events", "--nats", server.url, "--all"]
    await say(bus, subjects.state("node", "a"), Node(name="a"), "a")
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1, cwd=Path(__file__).parents[2])
    assert process.stdout
    await asyncio.wait_for(process.stdout.readline(), 10)
    process.send_signal(2)
    _, err = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, err) == (130, b"")


async def test_a_reader_that_leaves_early_is_no_error(bus, server):
    await say(bus, subjects.state("node", "a"), Node(name="a"), "a")
    head = f"{sys.executable} -m deploy.cli.main events --all --nats {server.url} | head -n 1"
    process = await asyncio.create_subprocess_shell(head, stdout=-1, stderr=-1, cwd=Path(__file__).parents[2])
    task = asyncio.create_task(process.communicate())
    async with asyncio.timeout(30):
        for number in itertools.count():  # it learns that nobody reads when it has something more to write
            await say(bus, subjects.state("node", f"b{number}"), Node(name=f"b{number}"), f"b{number}")
            if (await asyncio.wait([task], timeout=0.2))[0]:
                break
    out, err = task.result()
    assert (out.count(b"\n"), err) == (1, b"")


async def test_an_ascii_terminal_gets_escapes_instead_of_an_error(bus, server):
    await say(bus, subjects.state("node", OTHER), Node(name=OTHER), "a")
    env = os.environ | {"PYTHONIOENCODING": "ascii", "GPUBUS_NATS": server.url}
    shown = await asyncio.to_thread(gpubus, "events", "--no-follow", env=env)
    assert shown.returncode == 0
    assert "\\u30ce" in shown.stdout


@pytest.mark.parametrize("command", [("--help",), ("state", "--json"), ("state", "--nodes"), ("events", "--no-follow")])
def test_a_reader_that_goes_away_is_not_told_that_the_answer_is_no(server: LocalServer, bus: Bus, command) -> None:
    del bus  # declares the streams
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        arguments = [*command, *(("--nats", server.url) if command[0] != "--help" else ())]
        done = subprocess.run(
            [sys.executable, "-m", "deploy.cli.main", *arguments],
            stdout=pipe, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141 if command[0] != "events" else 0, "")
