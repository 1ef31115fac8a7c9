"""What admission costs a pod's creation: reviews over HTTPS through a gateway, the bus and a mutator, and back.

Method: one gateway, two mutators and an embedded nats-server, each a process; a client in another one
(:mod:`tests.benchmarks.load`) sends reviews of pods in both dialects as an API server writes them, over TLS connections that it
keeps. First 300 a second, at random times, for the latency; then as many as 32 connections get answered, for the throughput.
The floors, in the same run: a starlette handler that reads the body and answers what it always answers, in the same HTTPS server
with the same client; and a request of the same size to a responder on the bus that does nothing. All share the machine's cores.
"""

import asyncio
import base64
import contextlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats.errors
import trustme

from bus import subjects
from bus.connection import Bus
from deploy.local.processes import RoleProcess
from producers.gateway.app import LARGEST_BODY, Gateway, Said
from producers.gateway.body import read_body
from producers.gateway.service import GatewayService
from producers.gateway.tls import Certificate
from schemas.kube.resources import CustomResource
from tests.benchmarks.bench_agent import processor_s
from tests.benchmarks.end_to_end import message, publish, running_bus

RATE = 300
SECONDS = 6.0
CONNECTIONS = 32
MUTATORS = 2
ASKED = 2_000
REVIEWS = 64


def review(number: int) -> bytes:
    """Return a review as an API server sends it, of a pod that a ReplicaSet makes: every other one in HAMi's words.

    Every number is a controller of its own, whose pods are read for the first time in the client's warm-up.
    """
    limits = {"cpu": "4", "memory": "4Gi"}
    labels, annotations = (
        {"app": f"web-{number}", "pod-template-hash": "7d4b9c6f5"},
        {"kubectl.kubernetes.io/restartedAt": "2026-11-30T10:00:00Z"},
    )
    if number % 2:
        labels |= {"tensor-fusion.ai/enabled": "true"}
        prefix = "tensor-fusion.ai/"
        annotations |= {
            f"{prefix}tflops-request": "100",
            f"{prefix}tflops-limit": "200",
            f"{prefix}vram-request": "3Gi",
            f"{prefix}vram-limit": "3Gi",
        }
    else:
        limits |= {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "30"}
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    bundle = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": "registry.example/team/web:1.42.0",
                "command": ["python", "-m", "web"],
                "env": [{"name": f"SETTING_{one}", "value": "x" * 24} for one in range(12)],
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                "resources": {"limits": limits, "requests": dict(limits)},
                "volumeMounts": [
                    {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
                ],
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                },
                "terminationMessagePath": "/dev/termination-log",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "volumes": [{"name": "token", "projected": {"sources": [token, bundle], "defaultMode": 420}}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
    }
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-7d4b9c6f5",
        "uid": "0b7c3a0e",
        "controller": True,
    }
    fields = {
        "f:spec": {
            "f:containers": {'k:{"name":"main"}': {f"f:{key}": {} for key in spec["containers"][0]}},
            **{f"f:{key}": {} for key in spec},
        }
    }
    meta = {
        "generateName": "web-7d4b9c6f5-",
        "namespace": "team",
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
        "managedFields": [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
        ],
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    user = {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:authenticated"]}
    request = {
        "uid": f"00000000-0000-4000-8000-{number:012}",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": user,
        "dryRun": False,
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": {}},
        "oldObject": None,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


class Place:
    """Files that the client reads, and how it is called."""

    def __init__(self, root: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.ca, self.certificate, self.key = root / "ca.pem", root / "tls.crt", root / "tls.key"
        authority.cert_pem.write_to_path(self.ca)
        issued.private_key_pem.write_to_path(self.key)
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self._bodies = []
        for number in range(REVIEWS):
            self._bodies.append(str(root / f"{number}.json"))
            Path(self._bodies[-1]).write_bytes(review(number))

    async def ask(self, port: int, *, rate: float, seconds: float = SECONDS) -> dict[str, float]:
        """Send reviews to a port and return what the client measured."""
        options = {
            "port": port,
            "ca": str(self.ca),
            "path": "/mutate-v1-pod?timeout=10s",
            "bodies": self._bodies,
            "rate": rate,
            "seconds": seconds,
            "connections": CONNECTIONS,
        }
        command = [sys.executable, "-m", "tests.benchmarks.load", json.dumps(options)]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            said, _ = await asyncio.wait_for(client.communicate(), seconds + 30.0)
        except TimeoutError:
            client.kill()
            await client.wait()
            raise SystemExit("the benchmark run is invalid: its client did not end") from None
        found: dict[str, float] = json.loads(said)
        if found["failed"] or "p99" not in found:
            raise SystemExit(f"the benchmark run is invalid: {found}")
        return found


async def serve_nothing(certificate: Path, key: Path) -> None:
    """Be the floor's server: the gateway's own, whose answers take no thought. Prints its port; ends with its stdin."""
    answer = base64.b64encode(review(1))[:1500]  # as large as a patch

    class Nothing(Gateway):
        async def _answer(self, scope: Any, receive: Any) -> Said:  # noqa: ARG002
            await read_body(receive, LARGEST_BODY)
            return Said(200, answer, b"application/json")

    async with running_bus() as (_, bus):
        service = GatewayService(bus, Certificate(certificate, key), host="127.0.0.1", port=0)
        service._gateway = Nothing(None, None)  # type: ignore[arg-type]
        stop, ready = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
        serving = asyncio.create_task(service.run(stop, ready=ready))
        await ready.wait()
        print(service.port, flush=True)
        await serving


@asynccontextmanager
async def nothing(place: Place) -> AsyncIterator[int]:
    """Serve the floor in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_admission", str(place.certificate), str(place.key)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def hop(url: str) -> tuple[float, float]:
    """Return median and 99th percentile, in milliseconds, of requests to a responder on the bus that answers at once."""
    body, found = review(1), []
    async with await Bus.connect(url, name="asking") as asking, await Bus.connect(url, name="answering") as answering:

        async def answer(message: Any) -> None:
            await answering.client.publish(message.reply, body[:1500])

        await answering.client.subscribe("gpubus.rpc.bench", cb=answer)
        while True:  # a flush of the client library does not wait for the subscription
            with contextlib.suppress(nats.errors.Error):
                await asking.client.request("gpubus.rpc.bench", body, timeout=5.0)
                break
            await asyncio.sleep(0.01)
        for _ in range(ASKED):
            began = time.perf_counter()
            await asking.client.request("gpubus.rpc.bench", body, timeout=5.0)
            found.append(1e3 * (time.perf_counter() - began))
    found.sort()
    return found[len(found) // 2], found[len(found) * 99 // 100]


async def measure(place: Place) -> dict[str, dict[str, float]]:
    """Return what the client saw at the rate and at full speed, the processor time of a review, and the floors."""
    found: dict[str, dict[str, float]] = {}
    pool = CustomResource(
        plural="gpupools",
        namespace="",
        name="shared",
        uid="p",
        annotations={"tensor-fusion.ai/is-default-pool": "true"},
        spec={"nodeManagerConfig": {}},
    )
    async with nothing(place) as port:
        found["floor"] = await place.ask(port, rate=RATE)
        found["floor, all"] = await place.ask(port, rate=0)
    async with running_bus() as (server, bus):
        p50, p99 = await hop(server.url)
        found["hop"] = {"p50": p50, "p99": p99}
        subject = subjects.state("config", "gpupools", "", "shared")
        await publish(bus, [message(subject, "shared", pool, datetime.now(UTC))])
        mutators = [RoleProcess("mutator", [server.url]) for _ in range(MUTATORS)]
        port = _free_port()
        gateway = RoleProcess(
            "gateway",
            [server.url],
            "--listen",
            f"127.0.0.1:{port}",
            "--certificate",
            str(place.certificate),
            "--key",
            str(place.key),
        )
        await asyncio.gather(*(role.start() for role in (*mutators, gateway)))
        parts = {"gateway": [gateway.pid], "mutators": [one.pid for one in mutators], "server": [server.pid]}
        found["admission"] = await place.ask(port, rate=RATE)
        before = {name: sum(map(processor_s, pids)) for name, pids in parts.items()}
        found["admission, all"] = await place.ask(port, rate=0)
        took = {name: sum(map(processor_s, pids)) - before[name] for name, pids in parts.items()}
        reviews = found["admission, all"]["rate"] * (SECONDS + 1.0)
        found["processor"] = {name: 1e3 * seconds / reviews for name, seconds in took.items()}
        await asyncio.gather(*(role.stop() for role in (*mutators, gateway)))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def report() -> None:
    """Print what was measured beside the limits and the floors."""
    with tempfile.TemporaryDirectory(prefix="gpubus-bench-") as directory:
        found = await measure(Place(Path(directory)))

    def pair(name: str) -> str:
        return f"{found[name]['p50']:.2f} / {found[name]['p99']:.1f} ms"

    parts = ", ".join(f"{name} {took:.2f}" for name, took in found["processor"].items())
    print(
        f"\n1 gateway, {MUTATORS} mutators, {CONNECTIONS} TLS connections, {len(review(1))} bytes a review, {REVIEWS} controllers"
    )
    print("| what | result | limit |")
    print("|---|---|---|")
    print(f"| floor: a handler that does nothing, {RATE}/s, p50 / p99 | {pair('floor')} | |")
    print(f"| floor: request and reply on the bus, p50 / p99 | {pair('hop')} | |")
    print(f"| admission, {RATE}/s, p50 / p99 | {pair('admission')} | 2 / 15 ms |")
    print(f"| floor: a handler that does nothing, as many as go | {found['floor, all']['rate']:,.0f} /s | |")
    print(f"| admission, as many as go | {found['admission, all']['rate']:,.0f} /s | 1,500 /s |")
    print(f"| processor time of one of those, ms | {parts} | |")


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve_nothing(Path(sys.argv[1]), Path(sys.argv[2])))
