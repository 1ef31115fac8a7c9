"""The bus while servers die, connections go silent and acknowledgements are lost."""

import asyncio
import shutil
from datetime import UTC, datetime

import pytest

from bus import codec, ledger, rpc, subjects
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec
from bus.errors import CallError, ConflictError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE, WORK, ensure_streams, stream_info
from deploy.local.server import LocalServer
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from tests.conftest import eventually
from tests.fault.proxy import Proxy

pytestmark = pytest.mark.fault

SPEC = ConsumerSpec(stream=WORK, durable="workers", filters=("gpubus.work.schedule.>",), ack_wait_s=1.0, max_deliver=9)


async def restart(server: LocalServer) -> None:
    server.kill()
    await server.start()


async def publish(bus: Bus, subject: str, text: str) -> int:
    return (await bus.publisher.publish(subject, text.encode(), msg_id=f"{subject}:{text}")).seq


class Followed:
    """A follower of all nodes in STATE and what it has seen."""

    def __init__(self, bus: Bus) -> None:
        self.seen: list[Record] = []
        self.follower = Follower(bus, STATE, ["gpubus.state.node.*"], self.seen.append)

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.seen]


async def test_a_follower_goes_on_within_a_second_of_a_restart_and_misses_nothing(
    bus: Bus, server: LocalServer
) -> None:
    followed = Followed(bus)
    await followed.follower.start()
    stop = asyncio.Event()
    said: list[int] = []

    async def keep_publishing() -> None:
        while not stop.is_set():
            said.append(await publish(bus, subjects.state("node", f"n{len(said)}"), "here"))

    publishing = asyncio.create_task(keep_publishing())
    await eventually(lambda: len(followed.seen) > 20)
    await restart(server)
    before = len(followed.seen)
    await eventually(lambda: len(followed.seen) > before, timeout=1.0)
    await eventually(lambda: len(followed.seen) > before + 20)
    stop.set()
    await publishing
    await followed.follower.reached(said[-1])
    assert [record.seq for record in followed.seen] == said
    assert followed.follower.statistics().reloads == 1  # the first load: afterwards it resumed


async def test_a_follower_notices_that_the_last_message_was_lost_on_the_way(bus: Bus, server: LocalServer) -> None:
    async with Proxy(server.port) as proxy, await Bus.connect(proxy.url, name="behind the proxy") as remote:
        followed = Followed(remote)
        await followed.follower.start()
        proxy.silence("to_client")
        await publish(bus, subjects.state("node", "a"), "lost")
        await eventually(lambda: proxy.swallowed > 0)
        proxy.heal()
        await eventually(lambda: followed.payloads == [b"lost"])
        assert remote.statistics().reconnects == 0


async def test_a_follower_notices_a_server_that_has_forgotten_everything(bus: Bus, server: LocalServer) -> None:
    followed = Followed(bus)
    await publish(bus, subjects.state("node", "kept"), "old")
    await publish(bus, subjects.state("node", "lost"), "old")
    await followed.follower.start()
    server.kill()
    shutil.rmtree(server.store / "jetstream")
    await server.start()
    async with await Bus.connect(server.url, name="operator") as operator:
        await ensure_streams(operator)
        await publish(operator, subjects.state("node", "kept"), "new")
    await eventually(lambda: b"new" in followed.payloads and any(record.deleted for record in followed.seen))
    assert [record.subject for record in followed.seen if record.deleted] == [subjects.state("node", "lost")]


async def test_short_calls_are_answered_again_after_a_restart(bus: Bus, server: LocalServer) -> None:
    async def never(_: int) -> int:
        raise AssertionError

    service = rpc.Service(bus, "double", int, never, at_once=lambda number: 2 * number)
    await service.start()
    assert await rpc.call(bus, "double", 2, int) == 4
    await restart(server)
    async with asyncio.timeout(10):
        while True:
            try:
                assert await rpc.call(bus, "double", 3, int, timeout=1.0) == 6
                break
            except CallError:
                await asyncio.sleep(0.05)
    await service.stop()


async def test_a_pull_consumer_survives_a_restart_and_the_deletion_of_its_durable(
    bus: Bus, server: LocalServer
) -> None:
    subject = subjects.work("schedule", "p")
    consumer = PullConsumer(bus, SPEC)
    received: list[str] = []

    async def work() -> None:
        while taken := await consumer.take(10):
            for delivery in taken:
                received.append(delivery.payload.decode())
                await delivery.ack()

    await consumer.start()
    working = asyncio.create_task(work())
    await publish(bus, subject, "first")
    await eventually(lambda: "first" in received)
    await restart(server)
    await publish(bus, subject, "after the restart")
    await eventually(lambda: "after the restart" in received)
    await bus.api(f"CONSUMER.DELETE.{WORK}.{SPEC.durable}")
    await publish(bus, subject, "after the deletion")
    await eventually(lambda: "after the deletion" in received)
    async with asyncio.timeout(10):  # an acknowledgement that the dying server has not kept is given again
        while (await stream_info(bus, WORK)).state.messages:  # noqa: ASYNC110  a stream tells nobody that it is empty
            await asyncio.sleep(0.01)
    await consumer.stop()
    await working


async def test_publishes_during_an_outage_are_confirmed_after_it_once_each(bus: Bus, server: LocalServer) -> None:
    subject = subjects.work("schedule", "p")
    under_way = [asyncio.create_task(publish(bus, subject, f"before {number}")) for number in range(200)]
    await eventually(lambda: bus.publisher.statistics().in_flight + bus.publisher.statistics().published > 0)
    server.kill()
    await eventually(lambda: not bus.statistics().connected)
    under_way += [asyncio.create_task(publish(bus, subject, f"during {number}")) for number in range(200)]
    await server.start()
    sequences = await asyncio.gather(*under_way)
    assert len(set(sequences)) == 400
    assert (await stream_info(bus, WORK)).state.last_seq == 400


def record(txn: str, *uids: str) -> bytes:
    allocations = tuple(Allocation(pod_uid=uid, namespace="d", name=uid, pool="p") for uid in uids)
    data = NodeRecord(node="a", txn=txn, allocations=allocations, changes=())
    now = datetime.now(UTC)
    return codec.encode(Event(id=txn, source="/test", type="gpubus.ledger.node.v1", subject="a", time=now, data=data))


async def last_seq(bus: Bus) -> int:
    return (await stream_info(bus, LEDGER)).state.last_seq


@pytest.mark.parametrize("followed_by_another", [False, True])
async def test_a_commit_whose_acknowledgement_was_lost_is_recognised(
    bus: Bus, server: LocalServer, followed_by_another: bool
) -> None:
    subject = subjects.ledger_node("a")
    async with Proxy(server.port) as proxy, await Bus.connect(proxy.url, name="behind the proxy") as remote:
        proxy.silence("to_client")
        committing = asyncio.create_task(ledger.commit(remote, subject, record("ours", "u1"), txn="ours", expected=0))
        landed = Follower(bus, LEDGER, ["gpubus.ledger.>"], lambda _: None)
        await landed.start()
        await asyncio.wait_for(landed.reached(1), 5)
        if followed_by_another:
            await ledger.commit(bus, subject, record("theirs", "u1", "u2"), txn="theirs", expected=1)
        proxy.cut()
        assert await committing == 1
        assert await last_seq(bus) == 1 + followed_by_another


async def test_a_commit_that_was_lost_on_the_way_loses_to_whoever_came_first(bus: Bus, server: LocalServer) -> None:
    subject = subjects.ledger_node("a")
    async with Proxy(server.port) as proxy, await Bus.connect(proxy.url, name="behind the proxy") as remote:
        proxy.silence("to_server")
        committing = asyncio.create_task(ledger.commit(remote, subject, record("ours", "u1"), txn="ours", expected=0))
        await eventually(lambda: remote.publisher.statistics().in_flight == 1)
        await ledger.commit(bus, subject, record("theirs", "u2"), txn="theirs", expected=0)
        proxy.cut()
        with pytest.raises(ConflictError):
            await committing
        assert await last_seq(bus) == 1


async def test_a_connection_that_goes_silent_is_noticed_and_replaced(
    bus: Bus, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.PING_INTERVAL_S", 0.5)
    async with Proxy(server.port) as proxy, await Bus.connect(proxy.url, name="behind the proxy") as remote:
        followed = Followed(remote)
        await followed.follower.start()
        proxy.silence("to_server", "to_client")
        publishing = asyncio.create_task(publish(remote, subjects.state("node", "a"), "into the void"))
        await publish(bus, subjects.state("node", "b"), "unheard")
        await publishing
        await eventually(lambda: sorted(followed.payloads) == [b"into the void", b"unheard"])
        assert remote.statistics().reconnects == 1
        assert (await stream_info(bus, STATE)).state.last_seq == 2
