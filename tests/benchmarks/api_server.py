"""A server that lists and watches as kube-apiserver does, for more pods than a test can create: arguments PODS NODES RATE.

Pods are copies of two that a kube-apiserver 1.36 gave out, one in each dialect, 5.9 kB each with all that the watcher does not
read; pages are those that were asked for. After ``POST /go`` the watch of pods tells RATE updates a second.
"""

import asyncio
import json
import re
import sys
import time
from pathlib import Path

from aiohttp import web

PODS_FILE = Path(__file__).with_name("pods.json")
FIRST_VERSION = 1_000
CHUNKS_PER_S = 50
REPLICAS = 50
"""Pods of one controller, which are written alike but for their names and what was bound to them."""


def templates() -> list[bytes]:
    """Return the recorded pods with places for name, UID, version and node, in any order, and a label that changes."""
    found = []
    for pod in json.loads(PODS_FILE.read_text()):
        meta = pod["metadata"]
        meta["labels"]["step"] = "@step@"
        text = json.dumps(pod, separators=(",", ":"))
        for value, place in (
            (meta["uid"], "@uid@"), (meta["name"], "@name@"), (pod["spec"]["nodeName"], "@node@"),
            (meta["ownerReferences"][0]["name"], "@owner@"),
        ):  # fmt: skip
            text = text.replace(value, place)
        text = text.replace(f'"resourceVersion":"{meta["resourceVersion"]}"', '"resourceVersion":"@version@"')
        places = re.sub("@(uid|name|node|owner|version|step)@", r"%(\1)s", text.replace("%", "%%"))
        found.append(places.encode())
    return found


def uid(number: int) -> str:
    """Return the UID of a pod; it is on the node of its number modulo their count."""
    return f"00000000-0000-4000-8000-{number:012}"


class Api:
    """The server's objects, which are made when they are asked for."""

    def __init__(self, pods: int, nodes: int, rate: int) -> None:
        self.pods, self.nodes, self.rate = pods, nodes, rate
        self.version = FIRST_VERSION + pods
        self.go = asyncio.Event()
        self.told = 0
        self._templates = templates()

    def pod(self, number: int, version: int, step: int = 0) -> bytes:
        return self._templates[number % len(self._templates)] % {
            b"name": b"pod-%06d" % number,
            b"uid": uid(number).encode(),
            b"node": b"node-%05d" % (number % self.nodes),
            b"owner": b"training-%d" % (number // REPLICAS),
            b"version": b"%d" % version,
            b"step": b"%d" % step,
        }

    def node(self, number: int) -> bytes:
        name = f"node-{number:05}"
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        node = {
            "metadata": {"name": name, "uid": name, "resourceVersion": "5", "labels": {"pool": "shared"}},
            "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        return json.dumps(node).encode()

    async def list(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        if "watch" in request.query:
            return await self.watch(request, plural)
        first = int(request.query.get("continue") or 0)
        most = {"pods": self.pods, "nodes": self.nodes, "gpupools": 1}.get(plural, 0)
        last = min(first + int(request.query.get("limit", most)), most)
        match plural:
            case "pods":
                items = [self.pod(number, FIRST_VERSION + number) for number in range(first, last)]
            case "nodes":
                items = [self.node(number) for number in range(first, last)]
            case "gpupools":
                items = [POOL]
            case _:
                items = []
        meta = {"resourceVersion": str(self.version)} | ({"continue": str(last)} if last < most else {})
        body = b'{"kind":"List","metadata":%s,"items":[%s]}' % (json.dumps(meta).encode(), b",".join(items))
        return web.Response(body=body, content_type="application/json")

    async def watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        if plural == "pods":
            await self.go.wait()
            started = time.monotonic()
            while True:
                due = int((time.monotonic() - started) * self.rate)
                lines = []
                while self.told < due:
                    self.told += 1
                    self.version += 1
                    pod = self.pod(self.told % self.pods, self.version, self.told)
                    lines.append(b'{"type":"MODIFIED","object":%s}\n' % pod)
                if lines:
                    try:
                        await response.write(b"".join(lines))
                    except ConnectionError:
                        return response
                await asyncio.sleep(1 / CHUNKS_PER_S)
        await asyncio.Event().wait()
        return response

    async def start(self, _: web.Request) -> web.Response:
        self.go.set()
        return web.Response()

    async def progress(self, _: web.Request) -> web.Response:
        return web.json_response({"told": self.told, "version": self.version})


TERMS = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["shared"]}]}]
POOL = json.dumps(
    {
        "metadata": {
            "name": "shared", "uid": "p", "resourceVersion": "4",
            "annotations": {"tensor-fusion.ai/is-default-pool": "true"},
        },
        "spec": {"nodeManagerConfig": {"nodeSelector": {"nodeSelectorTerms": TERMS}}},
    }
).encode()  # fmt: skip


async def main() -> None:
    pods, nodes, rate = map(int, sys.argv[1:])
    api = Api(pods, nodes, rate)
    app = web.Application()
    app.router.add_post("/go", api.start)
    app.router.add_get("/progress", api.progress)
    app.router.add_get("/{path:.*}", api.list)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
