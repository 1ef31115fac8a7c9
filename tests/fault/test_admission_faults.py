"""A mutator that is killed under load: no pod is refused for it, and no slot of ``enabled-replicas`` is counted twice."""

import asyncio
import os
import signal
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Self

import msgspec
import pytest

from bus import codec, history, subjects
from bus.connection import Bus
from bus.streams import LEDGER
from consumers.mutator.counters import slots_subject
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from producers.gateway.service import GatewayService
from schemas.event import Event
from schemas.kube.resources import CustomResource
from schemas.slots import WorkloadSlots
from tests.makers import makers

pytestmark = pytest.mark.fault

RATE, OWNERS, PODS, LIMIT = 200, 20, 25, 10
TIMEOUT_S = 6.0


def review(number: int) -> dict:
    owner = {"kind": "ReplicaSet", "name": f"web-{number % OWNERS}", "uid": f"o{number % OWNERS}", "controller": True}
    prefix = "tensor-fusion.ai/"
    meta = {
        "generateName": f"{owner['name']}-",
        "ownerReferences": [owner],
        "labels": {f"{prefix}enabled": "true"},
        "annotations": {
            f"{prefix}enabled-replicas": str(LIMIT),
            f"{prefix}tflops-request": "10",
            f"{prefix}vram-request": "1Gi",
        },
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "main"}]}}
    request = {"uid": f"r{number}", "kind": kind, "namespace": "ml", "operation": "CREATE", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


class Connections:
    """Kept-alive connections to a port of this machine; they cost a fifth of what an HTTP library's do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._idle:
            writer.close()
            await writer.wait_closed()

    async def post(self, path: str, review: dict) -> tuple[int, bytes]:
        body = msgspec.json.encode(review)
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(f"POST {path} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(head[9:12]), answer


async def add_pool(bus: Bus) -> None:
    pool = CustomResource(
        plural="gpupools",
        namespace="",
        name="shared",
        uid="p",
        annotations={"tensor-fusion.ai/is-default-pool": "true"},
        spec={"nodeManagerConfig": {}},
    )
    event = Event(
        id="pool:1", source="/t", type="gpubus.resource.v1", subject="shared", time=datetime.now(UTC), data=pool
    )
    await bus.publisher.publish(subjects.state("config", "gpupools", "", "shared"), codec.encode(event))


async def test_a_mutator_killed_under_load_fails_no_request_and_doubles_no_slot(bus: Bus, server: LocalServer) -> None:
    await add_pool(bus)
    mutators = [RoleProcess("mutator", [server.url]) for _ in range(2)]
    await asyncio.gather(*(mutator.start() for mutator in mutators))
    stop, ready = asyncio.Event(), asyncio.Event()
    gateway = GatewayService(bus, None, host="127.0.0.1", port=0)
    serving = asyncio.create_task(gateway.run(stop, ready=ready))
    await ready.wait()
    began = time.perf_counter()

    async with Connections(gateway.port) as connections, makers(bus):

        async def ask(number: int) -> tuple[int, dict, float]:
            await asyncio.sleep(began + number / RATE - time.perf_counter())
            sent = time.perf_counter()
            if number == OWNERS * PODS // 3:
                # Stopped first, so that it is certain to have taken requests which it will never answer.
                os.kill(mutators[0].pid, signal.SIGSTOP)
            elif number == OWNERS * PODS // 3 + 30:
                await mutators[0].kill()
            status, text = await connections.post(f"/mutate-v1-pod?timeout={TIMEOUT_S:g}s", review(number))
            return number, {"status": status, "text": text}, time.perf_counter() - sent

        answers = await asyncio.gather(*(ask(number) for number in range(OWNERS * PODS)))
    stop.set()
    await serving
    await mutators[1].stop()

    assert [(number, found["text"]) for number, found, _ in answers if found["status"] != 200] == []
    assert max(took for *_, took in answers) > 0.2 * TIMEOUT_S, "somebody was asked again"
    responses = {number: msgspec.json.decode(found["text"])["response"] for number, found, _ in answers}
    assert all(response["allowed"] for response in responses.values())
    ours = {number for number, response in responses.items() if "patch" in response}
    assert Counter(number % OWNERS for number in ours) == dict.fromkeys(range(OWNERS), LIMIT)
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.workload.>"])
    counted = {record.subject: codec.decode_as(WorkloadSlots, record.payload).data.slots for record in records}
    for owner in range(OWNERS):
        held = [slot.id for slot in counted[slots_subject(f"ml/ReplicaSet/web-{owner}/o{owner}")]]
        assert sorted(held) == sorted(f"r{number}" for number in ours if number % OWNERS == owner)
