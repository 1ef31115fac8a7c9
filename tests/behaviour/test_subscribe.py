"""What others build on: subscriptions, the examples that use them, and the documents that describe every event."""

import asyncio
import gzip
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import PlaceLostError
from bus.history import AT_ONCE
from bus.streams import StreamLimits, declarations
from bus.subscribe import PLACES, Received, subscribe
from deploy.cli.main import main
from deploy.contract.documents import CHANNELS, asyncapi, json_schema
from deploy.examples import costs, csv_export, notifier
from deploy.local.server import LocalServer
from schemas.cluster import Node
from schemas.decision import Basis, Decision, GpuGrant
from schemas.event import Event
from schemas.registry import EVENT_TYPES, TYPE_NAMES, Tick

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ROOT = Path(__file__).parent.parent.parent


async def say(bus: Bus, subject: str, data, identity: str) -> int:
    event = Event(id=identity, source="/test", type=TYPE_NAMES[type(data)], subject="x", time=NOW, data=data)
    return (await bus.publisher.publish(subject, codec.encode(event), msg_id=identity)).seq


def decision(name: str, outcome: str = "allocated", namespace: str = "ml", **more) -> Decision:
    basis = Basis(state=1, ledger=1, ordinal=1)
    return Decision(
        outcome=outcome, namespace=namespace, name=name, pod_uid=name, pool="p", allocator="a", basis=basis, **more
    )


async def decide(bus: Bus, found: Decision) -> int:
    return await say(bus, subjects.decision(found.namespace, found.name), found, f"{found.name}:{found.outcome}")


async def take(subscription: AsyncIterator[Received], count: int) -> list[Received]:
    async with asyncio.timeout(20), aclosing(subscription):
        return [
            received
            for _, received in zip(range(count), [await anext(subscription) for _ in range(count)], strict=True)
        ]


async def test_a_place_that_the_stream_has_never_reached_is_refused_and_not_waited_for(bus: Bus) -> None:
    last = [await decide(bus, decision(f"p{number}")) for number in range(3)][-1]
    with pytest.raises(PlaceLostError) as caught:
        await anext(subscribe(bus, Decision, after=last + 1))
    assert (caught.value.after, caught.value.last) == (last + 1, last)
    at_the_end = asyncio.create_task(take(subscribe(bus, Decision, after=last), 1))
    new = await decide(bus, decision("new"))
    assert [received.seq for received in await at_the_end] == [new]


async def test_events_come_typed_from_any_place_on_and_then_as_they_are_said(bus: Bus) -> None:
    for number in range(5):
        await decide(bus, decision(f"p{number}"))
    first = await take(subscribe(bus, Decision, after=0), 3)
    assert [received.data.name for received in first] == ["p0", "p1", "p2"]
    assert [received.seq for received in first] == [1, 2, 3]
    rest = subscribe(bus, Decision, after=first[-1].seq)
    waiting = asyncio.create_task(take(rest, 3))
    await decide(bus, decision("later"))
    assert [received.data.name for received in await waiting] == ["p3", "p4", "later"]
    new = asyncio.create_task(take(subscribe(bus, Decision), 1))
    while not new.done():
        await decide(bus, decision(f"new{len(asyncio.all_tasks())}"))
        await asyncio.sleep(0.01)
    assert new.result()[0].data.name.startswith("new")


async def test_subscriptions_can_be_narrowed(bus: Bus) -> None:
    for number in range(6):
        await decide(bus, decision(f"p{number}", namespace=f"n{number % 2}", node=f"node.{number % 3}"))
    found = await take(subscribe(bus, Decision, after=0, namespace="n1", node="node.0"), 1)
    assert [received.data.name for received in found] == ["p3"]
    found = await take(subscribe(bus, Decision, after=0, subject="gpubus.decision.n0.>", pool="p"), 3)
    assert [received.data.name for received in found] == ["p0", "p2", "p4"]
    with pytest.raises(ValueError, match="says nothing of a namespace"):
        await anext(subscribe(bus, Node, namespace="n"))
    with pytest.raises(ValueError, match="Tick cannot be subscribed to"):
        await anext(subscribe(bus, Tick))


async def test_deletions_are_told_and_what_cannot_be_read_is_passed_over(bus: Bus) -> None:
    for name in ("a", "b"):
        await say(bus, subjects.state("node", name), Node(name=name), name)
    await bus.publisher.publish(subjects.state("node", "a"), b"")
    await bus.publisher.publish(subjects.state("node", "c"), b"{nonsense")
    await say(bus, subjects.state("node", "d"), Node(name="d"), "d")
    found = await take(subscribe(bus, Node, after=0), 3)
    assert [received.subject.split(".")[-1] for received in found] == ["b", "a", "d"]
    assert [received.deleted for received in found] == [False, True, False]
    with pytest.raises(ValueError, match="was deleted"):
        _ = found[1].data


async def test_a_slow_reader_is_waited_for_and_outages_are_waited_out(bus: Bus, server: LocalServer) -> None:
    count = 5 * AT_ONCE
    messages = [(subjects.decision("ml", f"p{n % 500}"), b"x" * 2000, f"m{n}") for n in range(count)]
    real = codec.encode(
        Event(
            id="i",
            source="/t",
            type="gpubus.decision.v1",
            subject="s",
            time=NOW,
            data=decision("p", message="x" * 2000),
        )
    )
    await bus.publisher.publish_all([(subject, real, identity) for subject, _, identity in messages])
    before = bus.statistics().in_bytes
    subscription = subscribe(bus, Decision, after=0)
    seqs = [(await anext(subscription)).seq]
    await asyncio.sleep(0.5)
    ahead = bus.statistics().in_bytes - before
    assert ahead < count * len(real) * 0.9  # the server has not sent everything to somebody who does not read
    await server.stop()
    await server.start()
    async with asyncio.timeout(60):
        while len(seqs) < count:
            seqs.append((await anext(subscription)).seq)
    await subscription.aclose()
    assert seqs == list(range(1, count + 1))


async def test_the_examples_do_what_they_say(bus: Bus, tmp_path, monkeypatch) -> None:
    gpu = GpuGrant(uuid="GPU-1", index=0, tflops_milli=1, vram_bytes=1)
    for found in (
        decision("a", gpus=(gpu,), node="n"),
        decision("b", "unschedulable", message="0 of 1 nodes fit", help="Add nodes."),
        decision("a", "released", node="n"),
        decision("c", namespace="other"),
    ):
        await decide(bus, found)
    out = io.StringIO()
    await csv_export.export(bus, out, "ml")
    rows = out.getvalue().splitlines()
    assert [row.split(",")[2:5] for row in rows[1:]] == [
        ["allocated", "ml", "a"], ["unschedulable", "ml", "b"], ["released", "ml", "a"]
    ]  # fmt: skip
    assert set((await costs.report(bus)).seconds) <= {"ml", "other"}
    counted = costs.Costs()
    counted.add(decision("x", gpus=(gpu, gpu)), NOW)
    counted.finish(datetime(2026, 11, 30, 1, tzinfo=UTC))
    assert counted.seconds == {"ml": 7200}
    posted: list[str] = []
    monkeypatch.setattr(notifier, "post", lambda _, text: posted.append(text))
    place = notifier.Place(tmp_path / "seq")
    place.write(0)
    running = asyncio.create_task(notifier.notify(bus, "http://x", place))
    async with asyncio.timeout(10):
        while place.read() != 4:  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.01)
    running.cancel()
    assert posted == ["ml/b waits for p: 0 of 1 nodes fit. Add nodes."]


def test_every_event_of_a_golden_log_fits_the_published_schema() -> None:
    schema = json_schema()
    checker = jsonschema.Draft202012Validator(schema)
    texts = [gzip.decompress(file.read_bytes()) for file in (ROOT / "tests/golden").glob("*.gz")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    events = [line["event"] for line in lines if "event" in line]
    seen = set()
    for event in events[:: max(len(events) // 200, 1)]:
        only = {**schema, "oneOf": [{"$ref": f"#/$defs/{event['type']}"}]}
        jsonschema.Draft202012Validator(only).validate(event)
        seen.add(event["type"])
    assert {"gpubus.decision.v1", "gpubus.ledger.node.v1", "gpubus.journal.v1"} <= seen
    wrong = {**events[-1], "data": {}}
    assert not checker.is_valid(wrong)


def test_the_contract_names_every_subscribable_type_and_only_subjects_that_are_stored() -> None:
    document = asyncapi("1")
    described = {event for _, event, _ in CHANNELS.values()}
    assert {TYPE_NAMES[kind] for kind in PLACES} <= described <= EVENT_TYPES.keys()
    prefixes = [
        subject.removesuffix(">") for config in declarations(StreamLimits()) for subject in config.subjects or ()
    ]
    for channel in document["channels"].values():
        assert channel["address"].startswith(tuple(prefixes))
        assert set(channel["parameters"]) == {part[1:-1] for part in channel["address"].split(".") if part[0] == "{"}

    def references(value) -> list[str]:
        if isinstance(value, dict):
            return [value["$ref"]] if "$ref" in value else [r for entry in value.values() for r in references(entry)]
        return [r for entry in value for r in references(entry)] if isinstance(value, list) else []

    for reference in references(document):
        target = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


@pytest.mark.parametrize("name", ["asyncapi", "jsonschema", "openapi"])
def test_the_committed_documents_are_those_that_the_types_give(name: str, capsys) -> None:
    file = ROOT / "deploy/contract" / f"{name}.json"
    assert main(["schema", name]) == 0
    assert capsys.readouterr().out == file.read_text(), f"run: gpubus schema {name} > deploy/contract/{name}.json"


def test_a_program_that_subscribes_is_type_checked() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", str(ROOT / "tests/typing/subscriber.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
