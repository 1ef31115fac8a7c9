"""A client that costs little: prepared requests over kept-alive TLS connections, a process of its own.

``python -m tests.benchmarks.load JSON`` with ``port``, ``ca``, ``path``, ``bodies`` (files), ``connections``, ``seconds`` and
``rate``. At a rate, requests come at random times (Poisson) whether or not earlier ones are answered, and their latency counts
from the moment they were due; with rate 0 every connection asks again as soon as it has its answer. Prints JSON: requests
answered with 200 per second, how many were answered otherwise, and the latencies' p50, p99 and maximum in milliseconds.
"""

import asyncio
import json
import random
import ssl
import sys
import time
from collections import deque
from pathlib import Path

import uvloop

WARM_UP_S = 1.0


class Connection(asyncio.Protocol):
    """One kept-alive connection with one request in flight at most."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._got = bytearray()
        self._due = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport) -> None:
        self._transport = transport
        self._load.free(self)

    def ask(self, request: bytes, due: float) -> None:
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head = self._got.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._got.lower().find(b"content-length: ", 0, head)
        length = int(self._got[at + 16 : self._got.find(b"\r\n", at)])
        if len(self._got) < head + 4 + length:
            return
        self._load.answered(self._due, int(self._got[9:12]))
        self._got.clear()
        self._load.free(self)

    def connection_lost(self, error) -> None:
        self._load.lost(error)


class Load:
    """What is asked, and what came of it."""

    def __init__(self, requests: list[bytes], rate: float) -> None:
        self._requests, self._rate = requests, rate
        self._idle: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._sent = 0
        self.latencies: list[float] = []
        self.failed = 0
        self.begin = self.end = 0.0

    def free(self, connection: Connection) -> None:
        if self._due:
            self._send(connection, self._due.popleft())
        elif self.begin and not self._rate and (now := time.perf_counter()) < self.end:
            self._send(connection, now)
        else:
            self._idle.append(connection)

    def _send(self, connection: Connection, due: float) -> None:
        self._sent += 1
        connection.ask(self._requests[self._sent % len(self._requests)], due)

    def answered(self, due: float, status: int) -> None:
        if due < self.begin + WARM_UP_S:
            return
        if status == 200:
            self.latencies.append(time.perf_counter() - due)
        else:
            self.failed += 1

    def lost(self, error) -> None:
        if time.perf_counter() < self.end:
            raise SystemExit(f"a connection was lost: {error}")

    async def run(self, seconds: float) -> None:
        self.begin = time.perf_counter()
        self.end = self.begin + WARM_UP_S + seconds
        if not self._rate:
            for connection in list(self._idle):
                self._idle.remove(connection)
                self._send(connection, self.begin)
            await asyncio.sleep(self.end - self.begin + 0.5)
            return
        chance, due = random.Random(1), self.begin
        while due < self.end:
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            if self._idle:
                self._send(self._idle.popleft(), due)
            else:
                self._due.append(due)
            due += chance.expovariate(self._rate)
        await asyncio.sleep(1.0)


async def main(options: dict, bodies: list[bytes]) -> None:
    context = ssl.create_default_context(cafile=options["ca"])
    head = f"POST {options['path']} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    requests = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
    load = Load(requests, options["rate"])
    loop = asyncio.get_running_loop()
    for _ in range(options["connections"]):
        await loop.create_connection(
            lambda: Connection(load), "127.0.0.1", options["port"], ssl=context, server_hostname="127.0.0.1"
        )
    await load.run(options["seconds"])
    found = sorted(load.latencies)
    result = {"rate": len(found) / options["seconds"], "failed": load.failed}
    if found:
        result |= {
            "p50": 1e3 * found[len(found) // 2], "p99": 1e3 * found[len(found) * 99 // 100], "max": 1e3 * found[-1]
        }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    uvloop.run(main(given, [Path(file).read_bytes() for file in given["bodies"]]))
