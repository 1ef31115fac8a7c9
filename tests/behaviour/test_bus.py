"""The bus against a real nats-server: publish, follow, share work, commit, call, wait."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import msgspec
import nats.errors
import pytest

from bus import codec, direct, history, ledger, moment, rpc, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.deadletter import get_letter, retry_letter
from bus.delivery import ConsumerSpec
from bus.errors import BusError, BusUnreachableError, CallError, ConflictError, NoResponderError, UndecodableError
from bus.follower import Follower, Record
from bus.publisher import Publisher
from bus.streams import CAPACITY, LEDGER, STATE, TICK, WORK, ensure_streams, require_streams, stream_info
from bus.worker import Dead, Done, Retry, Worker
from deploy.local.server import free_port
from schemas.cluster import Node
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from tests.conftest import eventually

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def node_event(name: str, revision: int = 1, **fields) -> Event:
    return Event(
        id=f"{name}:{revision}",
        source="/test",
        type="gpubus.node.v1",
        subject=name,
        time=NOW,
        data=Node(name=name, **fields),
    )


async def put(bus: Bus, event: Event) -> int:
    subject = subjects.state("node", event.data.name)
    return (await bus.publisher.publish(subject, codec.encode(event), msg_id=event.id)).seq


class Seen(list):
    """Collects records and can wait for one."""

    def nodes(self) -> list[str]:
        return [subjects.names(record.subject)[-1] for record in self]


@pytest.mark.parametrize("name", ["gpu-1.rack-2.example.com", "n" * 253, "ノード-é"])
async def test_names_and_labels_survive_a_round_trip(bus, name):
    event = node_event(name, labels={"team/名前": "Forschung & Entwicklung ☃"})
    await put(bus, event)
    seen: list[Record] = []
    follower = Follower(bus, "STATE", ["gpubus.state.>"], seen.append)
    await follower.start()
    assert subjects.names(seen[0].subject) == ("state", "node", name)
    assert codec.decode(seen[0].payload) == event


async def test_the_same_fact_twice_is_stored_once(bus):
    first = await put(bus, node_event("a"))
    assert await put(bus, node_event("a")) == first
    assert (await stream_info(bus, "STATE")).state.messages == 1
    assert bus.publisher.statistics().duplicates == 1


async def test_two_who_say_the_same_at_once_over_several_servers_are_both_told_that_it_is_stored(cluster, cluster_bus):
    """A message that is on its way to the other servers is neither stored yet nor another's."""
    subject = subjects.work("release", "node-a")
    async with await Bus.connect(cluster.urls[::-1], name="other") as other:
        acks = await asyncio.gather(
            *(
                one.publisher.publish(subject, b"{}", msg_id=f"pod-{number}")
                for number in range(1000)
                for one in (cluster_bus, other)
            )
        )
    assert [ack.seq for ack in acks[::2]] == [ack.seq for ack in acks[1::2]]
    assert len({ack.seq for ack in acks}) == 1000


async def test_only_one_of_many_racers_wins_a_compare_and_set(bus):
    async def race(i: int):
        return await bus.publisher.publish("gpubus.ledger.node.a", b"%d" % i, msg_id=f"t{i}", expected=0)

    results = await asyncio.gather(*(race(i) for i in range(20)), return_exceptions=True)
    assert sum(isinstance(result, ConflictError) for result in results) == 19
    assert (await stream_info(bus, "LEDGER")).state.messages == 1


async def test_a_follower_sees_the_newest_then_every_change_in_order(bus):
    for revision in range(3):
        await put(bus, node_event("a", revision, cpu_milli=revision))
    await put(bus, node_event("b"))
    seen: list[Record] = []
    follower = Follower(bus, "STATE", ["gpubus.state.>"], seen.append)
    await follower.start()
    assert [codec.decode(r.payload).id for r in seen] == ["a:2", "b:1"]
    seq = await put(bus, node_event("a", 9))
    await follower.reached(seq)
    assert codec.decode(seen[-1].payload).id == "a:9"
    assert follower.statistics().seq == seq


async def test_a_follower_of_nothing_is_loaded_at_once(bus):
    await put(bus, node_event("a"))
    follower = Follower(bus, "STATE", ["gpubus.state.pool.>"], [].append)
    await asyncio.wait_for(follower.start(), 3)


async def test_a_tombstone_is_seen_as_deletion(bus):
    await put(bus, node_event("a"))
    seen: list[Record] = []
    follower = Follower(bus, "STATE", ["gpubus.state.>"], seen.append)
    await follower.start()
    ack = await bus.publisher.publish(subjects.state("node", "a"), b"", msg_id="a:gone", headers={"Nats-TTL": "60s"})
    await follower.reached(ack.seq)
    assert seen[-1].deleted
    assert (await stream_info(bus, "STATE")).state.messages == 1


async def test_a_recreated_stream_is_loaded_anew_and_what_vanished_is_reported(bus):
    await put(bus, node_event("a"))
    await put(bus, node_event("b"))
    seen: list[Record] = []
    follower = Follower(bus, "STATE", ["gpubus.state.>"], seen.append)
    await follower.start()
    await bus.api("STREAM.DELETE.STATE")
    await ensure_streams(bus)
    await put(bus, node_event("b", 2))
    await eventually(lambda: any(r.deleted for r in seen))
    assert [subjects.names(r.subject)[-1] for r in seen if r.deleted] == ["a"]
    assert codec.decode([r for r in seen if not r.deleted][-1].payload).id == "b:2"


async def test_a_stream_of_an_older_version_takes_what_is_said_since_and_keeps_its_limits(bus):
    config = json.loads(await bus.api("STREAM.INFO.WORK"))["config"]
    older = {**config, "subjects": ["gpubus.work.schedule.>"], "max_bytes": 123_456}
    await bus.api("STREAM.UPDATE.WORK", older)
    await ensure_streams(bus, update=False)
    found = json.loads(await bus.api("STREAM.INFO.WORK"))["config"]
    assert (sorted(found["subjects"]), found["max_bytes"]) == (sorted(config["subjects"]), 123_456)


SPEC = ConsumerSpec(
    stream="WORK", durable="workers", filters=("gpubus.work.schedule.>",), ack_wait_s=1.0, max_deliver=3
)


async def offer(bus: Bus, *texts: str) -> None:
    for text in texts:
        await bus.publisher.publish(subjects.work("schedule", "p"), codec.encode(node_event(text)), msg_id=text)


async def test_two_members_share_the_work_and_each_message_is_handled_once(bus):
    await offer(bus, *(f"m{i}" for i in range(50)))
    handled: list[str] = []
    stop = asyncio.Event()

    async def handler(delivery):
        handled.append(delivery.event().data.name)
        await asyncio.sleep(0)
        return Done()

    workers = [Worker(PullConsumer(bus, SPEC, prefetch=8), handler) for _ in range(2)]
    tasks = [asyncio.create_task(worker.run(stop)) for worker in workers]
    await eventually(lambda: len(handled) >= 50)
    stop.set()
    await asyncio.gather(*tasks)
    assert sorted(handled) == sorted(f"m{i}" for i in range(50))
    assert (await stream_info(bus, "WORK")).state.messages == 0


async def test_outcomes(bus):
    await offer(bus, "retry-once", "bad", "raises")
    await bus.publisher.publish(subjects.work("schedule", "p"), b"{not json", msg_id="x")
    tries: dict[str, int] = {}
    stop = asyncio.Event()

    async def handler(delivery):
        name = delivery.event().data.name
        tries[name] = tries.get(name, 0) + 1
        if name == "bad":
            return Dead("a bad one")
        if name == "raises":
            raise RuntimeError("boom")
        return Retry(0.05) if tries[name] == 1 else Done()

    consumer = PullConsumer(bus, SPEC)
    task = asyncio.create_task(Worker(consumer, handler).run(stop))
    await eventually(lambda: consumer.buried == 3 and tries.get("retry-once") == 2)
    stop.set()
    await task
    assert tries == {"retry-once": 2, "bad": 1, "raises": 3}
    letters = [await get_letter(bus, "WORK", seq) for seq in (2, 3, 4)]
    assert [letter.reason.split(":")[0] for letter in letters] == ["a bad one", "RuntimeError", "not a CloudEvent"]
    assert letters[2].payload == b"{not json"
    assert (await stream_info(bus, "WORK")).state.messages == 0


async def test_a_dead_letter_can_be_retried(bus):
    await offer(bus, "m")
    consumer = PullConsumer(bus, SPEC)
    await consumer.start()
    (delivery,) = await consumer.take(10)
    await delivery.dead("try me again")
    letter = await retry_letter(bus, "WORK", delivery.position.seq)
    assert letter.reason == "try me again"
    (again,) = await consumer.take(10)
    assert again.payload == delivery.payload
    with pytest.raises(BusError, match="no dead letter"):
        await get_letter(bus, "WORK", delivery.position.seq)
    await consumer.stop()


async def test_what_a_member_does_not_acknowledge_goes_to_another(bus):
    await offer(bus, "m")
    lazy, eager = PullConsumer(bus, SPEC), PullConsumer(bus, SPEC)
    await lazy.start()
    (kept,) = await lazy.take(10)
    await lazy.stop()
    await eager.start()
    (given,) = await asyncio.wait_for(eager.take(10), 5)
    assert (kept.payload, given.position.deliveries) == (given.payload, 2)
    await given.ack()
    await eager.stop()


async def test_a_message_that_nobody_survives_is_buried_unhandled(bus):
    await offer(bus, "killer")
    consumer = PullConsumer(bus, msgspec.structs.replace(SPEC, ack_wait_s=0.2))
    await consumer.start()
    for _ in range(3):
        assert len(await consumer.take(1)) == 1  # and never acknowledged
    taking = asyncio.create_task(consumer.take(1))
    await eventually(lambda: consumer.buried == 1)
    assert (await get_letter(bus, "WORK", 1)).reason == "not handled in 3 deliveries"
    await consumer.stop()
    assert await taking == []


async def test_a_stopping_member_gives_back_what_it_had_not_begun(bus):
    await offer(bus, *(f"m{i}" for i in range(5)))
    first = PullConsumer(bus, msgspec.structs.replace(SPEC, ack_wait_s=60.0))
    await first.start()
    await (await first.take(1))[0].ack()
    await eventually(lambda: first.statistics().buffered == 4)
    await first.stop()
    second = PullConsumer(bus, SPEC)
    await second.start()
    got: list = []
    async with asyncio.timeout(5):
        while len(got) < 4:
            got += await second.take(10)
    await second.stop()


def record(node: str, *uids: str, txn: str) -> bytes:
    allocations = tuple(Allocation(pod_uid=uid, namespace="d", name=uid, pool="p") for uid in uids)
    data = NodeRecord(node=node, txn=txn, allocations=allocations, changes=())
    return codec.encode(Event(id=txn, source="/test", type="gpubus.ledger.node.v1", subject=node, time=NOW, data=data))


async def test_commits_replace_what_they_had_seen(bus):
    subject = subjects.ledger_node("a")
    first = await ledger.commit(bus, subject, record("a", "u1", txn="t1"), txn="t1", expected=0)
    second = await ledger.commit(bus, subject, record("a", "u1", "u2", txn="t2"), txn="t2", expected=first)
    assert second > first
    with pytest.raises(ConflictError):
        await ledger.commit(bus, subject, record("a", txn="t3"), txn="t3", expected=first)


async def test_an_unconfirmed_commit_that_landed_is_recognised(bus):
    subject = subjects.ledger_node("a")
    payload = record("a", "u1", txn="t1")
    # The first copy landed without its acknowledgement: same bytes, and no message id for the server to know it by.
    await bus.publisher.publish(subject, payload, expected=0)
    assert await ledger._landed(bus, subject, "t1", 0) == 1
    await ledger.commit(bus, subject, record("a", txn="t2"), txn="t2", expected=1)
    assert await ledger._landed(bus, subject, "t1", 0) == 1
    assert await ledger._landed(bus, subject, "t9", 0) == 0


async def test_an_atomic_commit_is_all_or_nothing(bus):
    a, b = subjects.ledger_node("a"), subjects.ledger_node("b")
    first = await ledger.commit_all(
        bus,
        [ledger.Write(a, record("a", txn="t1"), 0), ledger.Write(b, record("b", txn="t1"), 0)],
    )
    with pytest.raises(ConflictError):
        await ledger.commit_all(
            bus,
            [ledger.Write(a, record("a", "u", txn="t2"), first), ledger.Write(b, record("b", "u", txn="t2"), 99)],
        )
    assert (await stream_info(bus, "LEDGER")).state.last_seq == first + 1


class Ask(msgspec.Struct):
    number: int


async def test_calls_reach_one_responder_and_errors_reach_the_caller(bus):
    async def double(ask: Ask) -> Ask:
        if ask.number < 0:
            raise ValueError("negative number -1")
        return Ask(ask.number * 2)

    services = [rpc.Service(bus, "double", Ask, double) for _ in range(2)]
    for service in services:
        await service.start()
    answers = await asyncio.gather(*(rpc.call(bus, "double", Ask(i), Ask) for i in range(20)))
    assert [answer.number for answer in answers] == [2 * i for i in range(20)]
    assert sum(service.statistics().answered for service in services) == 20
    with pytest.raises(CallError, match="ValueError: negative number -1"):
        await rpc.call(bus, "double", Ask(-1), Ask)
    with pytest.raises(CallError, match="nobody answers"):
        await rpc.call(bus, "treble", Ask(1), Ask)
    for service in services:
        await service.stop()


async def test_what_needs_no_waiting_is_answered_at_once(bus):
    async def slowly(ask: Ask) -> Ask:
        await asyncio.sleep(0)
        return Ask(-ask.number)

    def at_once(ask: Ask) -> object:
        if ask.number > 5:
            raise ValueError("too much")
        return Ask(2 * ask.number) if ask.number % 2 else rpc.LATER

    service = rpc.Service(bus, "double", Ask, slowly, at_once=at_once)
    await service.start()
    answers = await asyncio.gather(*(rpc.call(bus, "double", Ask(i), Ask) for i in range(5)))
    assert [answer.number for answer in answers] == [0, 2, -2, 6, -4]
    with pytest.raises(CallError, match="ValueError: too much"):
        await rpc.call(bus, "double", Ask(6), Ask)
    assert (service.statistics().answered, service.statistics().failed) == (5, 1)
    await service.stop()


async def test_a_message_that_cannot_be_handled_where_it_is_read_ends_no_reading(bus, caplog):
    seen = []

    def handle(message):
        if message.data == b"bad":
            raise ValueError("unreadable")
        seen.append(message.data)

    subscription = await direct.subscribe(bus.client, "gpubus.test.direct", handle)
    for payload in (b"one", b"bad", b"two"):
        direct.publish(bus.client, "gpubus.test.direct", payload)
    await eventually(lambda: seen == [b"one", b"two"])
    assert "a message could not be handled" in caplog.text
    await subscription.unsubscribe()


async def test_a_publish_that_nobody_waits_for_any_more_leaves_its_place_to_the_next(bus):
    publisher = Publisher(bus.client, bus.express, f"{bus.inbox}.narrow", window=1)
    await publisher.start()
    given_up = asyncio.create_task(publisher.publish("gpubus.decision.a", b"1", msg_id="given-up"))
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.timeout(10):
        assert (await publisher.publish("gpubus.decision.a", b"2", msg_id="next")).seq == 2
        acks = await publisher.publish_all([("gpubus.decision.a", b"3", f"m{number}") for number in (1, 2, 1)])
    assert [(ack.seq, ack.duplicate) for ack in acks] == [(3, False), (4, False), (3, True)]
    assert publisher.statistics().in_flight == 0
    await publisher.stop()


async def test_publishing_without_waiting_says_when_nothing_can_be_sent(server):
    async with await Bus.connect(server.url, name="lonely") as bus:
        client = bus.client
    with pytest.raises(nats.errors.Error):
        direct.publish(client, "gpubus.test.direct", b"late")


async def test_another_is_asked_while_the_first_is_slow_and_whoever_answers_first_counts(bus):
    asked, go_on = [], asyncio.Event()

    async def slow_at_first(ask: Ask) -> Ask:
        asked.append(ask.number)
        number = len(asked)
        if number == 1:
            await go_on.wait()
        return Ask(number)

    service = rpc.Service(bus, "slow", Ask, slow_at_first)
    await service.start()
    assert (await rpc.call(bus, "slow", Ask(7), Ask, timeout=10, again=0.05)).number == 2
    assert asked == [7, 7]
    go_on.set()  # its answer comes when nobody waits any more
    assert (await rpc.call(bus, "slow", Ask(8), Ask, timeout=10, again=5)).number == 3
    await service.stop()

    async def never(_: Ask) -> Ask:
        await asyncio.Event().wait()
        raise AssertionError

    service = rpc.Service(bus, "never", Ask, never)
    await service.start()
    with pytest.raises(CallError, match=r"no answer within 0\.2 s"):
        await rpc.call(bus, "never", Ask(1), Ask, timeout=0.2, again=0.05)
    for task in service._running:
        task.cancel()
    await service.stop()


async def test_answers_in_parts_are_gathered_and_errors_come_through(bus):
    async def repeat(times: int) -> str:
        return "ab" * times

    service = rpc.Service(bus, "repeat", int, repeat)
    await service.start()
    sizes = (0, 1, rpc.PART // 2, rpc.PART, 3 * rpc.PART)
    answers = await asyncio.gather(*(rpc.gather(bus, "repeat", size, str, timeout=10) for size in sizes))
    assert answers == ["ab" * size for size in sizes]
    with pytest.raises(CallError, match="gather it"):
        await rpc.call(bus, "repeat", rpc.PART, str)
    with pytest.raises(CallError, match="ask for less"):
        await rpc.gather(bus, "repeat", rpc.LARGEST, str, timeout=30)
    with pytest.raises(NoResponderError):
        await rpc.gather(bus, "nobody", 1, str)
    await service.stop()


async def test_server_side_timers_tick_into_the_work_queue(bus):
    spec = ConsumerSpec(stream="TICK", durable="ticks", filters=("gpubus.work.tick.>",))
    consumer = PullConsumer(bus, spec)
    await consumer.start()
    now = datetime.now(UTC)
    await timers.tick_at(bus, "once", "a", now + timedelta(seconds=1), now=now)
    await timers.tick_every(bus, "sweep", "p", timedelta(seconds=1), now=now)
    got: list[str] = []
    async with asyncio.timeout(10):
        while len(got) < 4:
            for delivery in await consumer.take(10):
                got.append(subjects.names(delivery.subject)[2])
                await delivery.ack()
    assert got.count("once") == 1
    await timers.cancel(bus, "sweep", "p")
    await consumer.stop()


async def test_an_unreachable_server_is_one_clear_line():
    port = free_port()
    with pytest.raises(BusUnreachableError, match=f"NATS is unreachable at nats://127.0.0.1:{port} .*--nats"):
        await Bus.connect(f"nats://127.0.0.1:{port}", name="test", timeout=0.5)


async def test_a_server_without_streams_is_named(server):
    async with await Bus.connect(server.url, name="test") as bus:
        with pytest.raises(BusError, match="no gpubus streams"):
            await require_streams(bus)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not a CloudEvent"),
        (b"[]", "not a CloudEvent"),
        (b'{"id":1}', "not a CloudEvent"),
        (b"\xff\xfe", "not a CloudEvent"),
        (
            b'{"id":"1","source":"/s","type":"x","subject":"s","time":"2026-11-30T00:00:00Z","data":{},"specversion":"1.0"}',
            "unknown event type 'x'",
        ),
        (
            b'{"id":"1","source":"/s","type":"gpubus.node.v1","subject":"s","time":"2026-11-30T00:00:00Z","data":{"name":3}}',
            r"bad gpubus.node.v1 payload: Expected `str`, got `int` - at `\$.name`",
        ),
    ],
)
def test_undecodable_messages_say_why(payload, reason):
    with pytest.raises(UndecodableError, match=reason):
        codec.decode(payload)


async def test_a_role_adds_the_subjects_that_an_earlier_version_did_not_speak_on_and_changes_nothing_else(
    bus: Bus,
) -> None:
    async def config() -> dict:
        return msgspec.json.decode(await bus.api(f"STREAM.INFO.{CAPACITY}"))["config"]

    declared = await config()
    earlier = {**declared, "subjects": ["gpubus.drift.>"], "max_bytes": 4096}
    await bus.api(f"STREAM.UPDATE.{CAPACITY}", earlier)
    await ensure_streams(bus, update=False)
    after = await config()
    assert sorted(after.pop("subjects")) == sorted(declared["subjects"])
    assert after.pop("max_bytes") == 4096
    await ensure_streams(bus)
    assert await config() == declared


async def test_a_queue_is_refused_as_a_past_instead_of_waited_for(bus: Bus) -> None:
    await bus.publisher.publish("gpubus.work.schedule.a.b", b"{}", msg_id="x")
    for stream in (WORK, TICK):
        with pytest.raises(BusError, match=f"stream {stream} is a queue"):
            await history.read(bus, stream, [">"], print)
        with pytest.raises(BusError, match=f"stream {stream} is a queue"):
            await history.newest(bus, stream, [">"])
        with pytest.raises(BusError, match=f"stream {stream} is a queue"):
            await anext(history.batches(bus, stream, [">"]))
    with pytest.raises(BusError, match="stream NOWHERE cannot be read"):
        await history.read(bus, "NOWHERE", [">"], print)


async def test_the_newest_of_several_kinds_are_of_one_moment_while_all_of_them_change(bus: Bus) -> None:
    kinds, rounds = ("node", "gpu", "pool"), 0
    stop = asyncio.Event()

    async def write() -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            for kind in kinds:
                gone = kind == "pool" and rounds % 3 == 0
                payload = b"" if gone else b"%d" % rounds
                await bus.publisher.publish(subjects.state(kind, "x"), payload, msg_id=f"{kind}{rounds}")

    writing = asyncio.create_task(write())
    cuts = []
    for _ in range(30):
        begun = rounds
        records, seq = await history.newest(bus, STATE, [f"gpubus.state.{kind}.>" for kind in kinds])
        assert [record.seq for record in records] == sorted(record.seq for record in records)
        full, part = divmod(seq, len(kinds))  # rounds that were written whole by then, and how much of the next
        wanted = {kind: full + (place < part) for place, kind in enumerate(kinds)}
        if wanted["pool"] % 3 == 0:
            del wanted["pool"]
        said = {subjects.names(record.subject)[1]: int(record.payload) for record in records}
        assert said == {kind: number for kind, number in wanted.items() if number}
        cuts.append(full - begun)
    stop.set()
    await writing
    assert any(cuts)  # it was written meanwhile


async def test_the_newest_records_before_any_point_are_those_that_a_reader_had_by_then(bus: Bus, monkeypatch) -> None:
    monkeypatch.setattr(moment, "AT_ONCE", 3)
    monkeypatch.setattr(moment, "PROBES", 2)
    assert await moment.newest_before(bus, LEDGER, ["gpubus.ledger.node.>"], lambda _: True) == []
    for number in range(60):
        subject = f"gpubus.ledger.node.{number * number % 11}" if number % 7 else "gpubus.ledger.quota.a"
        await bus.publisher.publish(subject, b"" if number % 10 == 9 else f"{number}".encode(), msg_id=f"{number}")
    for seq in (1, 20, 21, 59, 60):
        await bus.api(f"STREAM.MSG.DELETE.{LEDGER}", {"seq": seq})
    records: list[Record] = []
    await history.read(bus, LEDGER, [">"], records.append)
    for filters in (["gpubus.ledger.node.>"], ["gpubus.ledger.node.4", "gpubus.ledger.quota.*"]):
        prefixes = tuple(one.rstrip(">*") for one in filters)
        for end in range(62):
            held: dict[str, Record] = {}
            for record in records:
                if record.seq <= end and record.subject.startswith(prefixes):
                    held.pop(record.subject, None)
                    held[record.subject] = record
            found = await moment.newest_before(bus, LEDGER, filters, lambda record, end=end: record.seq <= end)
            assert found == list(held.values()), end
    with pytest.raises(BusError, match="stream NOWHERE could not be read"):
        await moment.newest_before(bus, "NOWHERE", [">"], lambda _: True)
