"""What arrives in pieces of any size is told to followers and to the client as it was sent."""

from collections.abc import Iterator
from random import Random

import pytest
from nats.errors import ProtocolError

from bus.express import Express

MINE, OTHERS = 7, 8


class Client:
    """Stands where the client does, and writes down what it is told."""

    def __init__(self) -> None:
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self.told: list[tuple] = []

    async def _process_msg(self, *message) -> None:
        self.told.append(message)

    async def _process_ping(self) -> None:
        self.told.append(("ping",))

    async def _process_info(self, info) -> None:
        self.told.append(("info", info["server_id"]))

    async def _process_err(self, text) -> None:
        self.told.append(("error", text))


class Subscription:
    _id = MINE


def message(sid: int, number: int, payload: bytes, headers: bytes = b"", reply: bytes = b"") -> bytes:
    words = [b"HMSG" if headers else b"MSG", f"s.{number}".encode(), str(sid).encode()]
    words += [reply] if reply else []
    words += [str(len(headers)).encode()] if headers else []
    line = b" ".join((*words, str(len(headers) + len(payload)).encode()))
    return line + b"\r\n" + headers + payload + b"\r\n"


def conversation(random: Random, count: int) -> tuple[bytes, list[tuple], list[tuple]]:
    """Return what a server says, what a follower is to hear of it, and what the client is."""
    said, heard, told = b'INFO {"server_id": "x"}\r\n', [], [("info", "x")]
    for number in range(count):
        payload = random.choice([b"", b"{}", b"MSG a 7 2\r\nxx\r\n", random.randbytes(random.randrange(300))])
        headers = random.choice([b"", b"NATS/1.0\r\na: b\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"])
        reply = random.choice([b"", b"$JS.ACK.x", b"12"])
        sid = random.choice([MINE, OTHERS])
        said += message(sid, number, payload, headers, reply)
        if sid == MINE and reply.startswith(b"$JS"):
            heard.append((f"s.{number}".encode(), reply, headers, payload))
        else:
            told.append((sid, f"s.{number}".encode(), reply, payload, headers or None))
        if random.random() < 0.2:
            said += b"PING\r\n"
            told.append(("ping",))
    return said, heard, told


def pieces(random: Random, said: bytes) -> Iterator[bytes]:
    while said:
        size = random.choice([1, 2, 7, 100, 5000])
        yield said[:size]
        said = said[size:]


@pytest.mark.parametrize("seed", range(20))
async def test_messages_in_pieces(seed: int) -> None:
    random, client, heard = Random(seed), Client(), []

    def hear(*delivery: bytes) -> bool:
        if delivery[1].startswith(b"$JS"):
            heard.append(delivery)
            return True
        return False

    express = Express(client)
    said, expected, told = conversation(random, 60)
    begun = False
    for piece in pieces(random, said):
        if not begun and client.told:  # in the middle of a message, as it may be
            express.attach(Subscription, hear)
            begun = True
        await express.parse(piece)
    missed = len(expected) - len(heard)
    assert heard == expected[missed:]
    assert missed <= 60
    rest = [one for one in client.told if not (one[0] == MINE and one[2].startswith(b"$JS"))]
    assert rest == told
    assert client.stats["in_msgs"] == len(heard)
    assert not express.buf


async def test_a_follower_that_raises_stops_nobody(caplog) -> None:
    client, express = Client(), None
    express = Express(client)
    express.attach(Subscription, lambda *_: 1 // 0)
    await express.parse(message(MINE, 1, b"x") + message(OTHERS, 2, b"y"))
    assert [told[0] for told in client.told] == [OTHERS]
    assert "could not be taken in" in caplog.text


async def test_what_came_over_a_lost_connection_is_forgotten() -> None:
    client, heard = Client(), []
    express = Express(client)
    express.attach(Subscription, lambda *delivery: heard.append(delivery) or True)
    whole = message(MINE, 1, b"first")
    await express.parse(whole[:-4])
    express.reset()
    await express.parse(message(MINE, 2, b"second"))
    assert [payload for *_, payload in heard] == [b"second"]

    async def lose(_: str) -> None:
        express.reset()

    client._process_err = lose
    await express.parse(b"-ERR 'Stale Connection'\r\n" + whole)
    assert len(heard) == 1


async def test_what_no_server_says_is_refused() -> None:
    express = Express(Client())
    express.attach(Subscription, lambda *_: True)
    with pytest.raises(ProtocolError):
        await express.parse(b"HELLO\r\n")
