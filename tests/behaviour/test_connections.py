"""Clients of remote workers on a real bus: seated by one record however many seat them, and told where their worker is."""

import asyncio
from types import SimpleNamespace

import pytest

from bus import codec, subjects
from bus.connection import Bus
from consumers.workload.seating import Seating
from deploy.local.server import LocalServer
from producers.gateway.access import DeniedError
from producers.gateway.callers import PodIdentity
from producers.gateway.connections import Connections
from schemas.event import Event
from schemas.remote import Connection
from tests.conftest import eventually

KEY = ("ml", "web")


async def test_of_two_who_seat_at_once_one_sees_the_other(server: LocalServer, bus: Bus) -> None:
    async with await Bus.connect(server.url, name="other") as second:
        seatings = [Seating(bus, "a"), Seating(second, "b")]
        for one in seatings:
            await one.start()
        read = [one.read(KEY) for one in seatings]
        assert read == [(0, {}), (0, {})]
        done = await asyncio.gather(*(one.settle(KEY, 0, {f"c{n}": "w"}) for n, one in enumerate(seatings)))
        assert sorted(done) == [False, True]
        loser = seatings[done.index(False)]
        seq, before = loser.read(KEY)
        assert (seq > 0, len(before)) == (True, 1), "it has heard of the other by now"
        assert not await loser.settle(KEY, 0, {}), "what was read too long ago counts no more"
        assert await loser.settle(KEY, seq, before | {"late": "w"})
        await eventually(lambda: all(len(one.read(KEY)[1]) == 2 for one in seatings))
        await bus.publisher.publish("gpubus.ledger.seats.ml.web", b"{")
        await eventually(lambda: loser.unreadable(KEY))
        assert not await loser.settle(KEY, loser.read(KEY)[0], {}), "nobody is seated where somebody may be already"
        for one in seatings:
            await one.stop()


class Known:
    """Says which pod a token is of."""

    async def identify(self, token: str) -> PodIdentity:
        if token == "nobody":
            raise DeniedError(401, "the token is no pod's", "send another")
        namespace, name, uid = token.split(".")
        return PodIdentity(namespace, name, uid)


def asked(token: str, name: str = "app-tf-vgpu", namespace: str = "ml") -> SimpleNamespace:
    return SimpleNamespace(
        headers={"authorization": f"Bearer {token}"}, query_params={"name": name, "namespace": namespace}
    )


async def say(bus: Bus, uid: str, url: str) -> None:
    said = Connection(namespace="ml", name="app-tf-vgpu", workload="web", client="app", client_uid=uid, url=url)
    event = Event(
        id=f"{uid}{url}", source="/t", type="gpubus.connection.v1", subject="s", time="2026-01-01T00:00:00Z", data=said
    )
    await bus.publisher.publish(subjects.state("connection", "ml", "app-tf-vgpu"), codec.encode(event))


@pytest.fixture
async def told(bus: Bus):
    found = Connections(bus, Known(), patience_s=0.3)  # type: ignore[arg-type]
    await found.start()
    yield found
    await found.stop()


async def test_a_url_is_told_to_the_pod_whose_connection_it_is_as_soon_as_there_is_one(
    told: Connections, bus: Bus
) -> None:
    unknown = await told.answer(asked("ml.app.u1"))  # type: ignore[arg-type]
    assert (unknown.status_code, b"is not known" in unknown.body) == (404, True)
    told._patience_s = 20
    waiting = asyncio.create_task(told.answer(asked("ml.app.u1")))  # type: ignore[arg-type]
    await say(bus, "u0", "native+old")  # of a pod that had the name before
    await say(bus, "u1", "")
    await eventually(lambda: told._known[KEY[0], "app-tf-vgpu"].client_uid == "u1")
    assert not waiting.done()
    await say(bus, "u1", "native+new")
    answer = await waiting
    assert (answer.status_code, answer.body) == (200, b"native+new")
    assert not told._waiting, "nobody is waited for any more"


async def test_nobody_else_is_told(told: Connections, bus: Bus) -> None:
    await say(bus, "u1", "native+secret")
    await eventually(lambda: bool(told._known))
    for token, code in (("nobody", 401), ("ml.other.u2", 403), ("xx.app.u1", 403), ("ml.app.u9", 504)):
        answer = await told.answer(asked(token))  # type: ignore[arg-type]
        assert (answer.status_code, b"secret" in answer.body) == (code, False), token
    assert (await told.answer(asked("ml.app.u1", name=""))).status_code == 400  # type: ignore[arg-type]
    bare = SimpleNamespace(headers={}, query_params={})
    assert (await told.answer(bare)).status_code == 401  # type: ignore[arg-type]


async def test_who_waits_hears_of_it_when_the_gateway_stops(told: Connections) -> None:
    told._patience_s = 60
    waiting = asyncio.create_task(told.answer(asked("ml.app.u1")))  # type: ignore[arg-type]
    await eventually(lambda: bool(told._waiting))
    told.hurry()
    assert (await waiting).status_code == 503
