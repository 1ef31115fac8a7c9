"""Plays what runs pods: agents come up or crash loop by their image, and what is deleted ends."""

import asyncio
import json
from collections import defaultdict
from typing import Any, Self

from bus.kube.client import STRATEGIC, resource_path
from bus.kube.errors import KubeRefusedError
from tests.integration.cluster import Cluster


class Kubelet:
    """The pods of one namespace.

    Attributes:
        crashing: Images whose containers crash loop.
        made: UIDs of the pods that each node has had, oldest first.
        most_down: Most nodes that had no ready pod at the same time, once all had one.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.crashing: set[str] = set()
        self.made: defaultdict[str, list[str]] = defaultdict(list)
        self.images: dict[str, str] = {}
        self.most_down = 0
        self._complete = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        body = json.dumps({"gracePeriodSeconds": 0}).encode()
        await self.cluster.client.call("DELETE", resource_path("v1", "pods", self.namespace), body=body)

    async def _run(self) -> None:
        while True:
            pods = await self.cluster.list("Pod", self.namespace)
            await asyncio.gather(*map(self._play, pods))
            ready = {pod["spec"]["nodeName"] for pod in pods if is_ready(pod)}
            nodes = {node["metadata"]["name"] for node in await self.cluster.list("Node")}
            self._complete = self._complete or (bool(nodes) and ready == nodes)
            if self._complete:
                self.most_down = max(self.most_down, len(nodes - ready))
            await asyncio.sleep(0.05)

    async def _play(self, pod: dict[str, Any]) -> None:
        meta, image = pod["metadata"], pod["spec"]["containers"][0]["image"]
        uids = self.made[pod["spec"]["nodeName"]]
        if meta["uid"] not in uids:
            uids.append(meta["uid"])
        try:
            if meta.get("deletionTimestamp"):
                await self.cluster.delete("Pod", meta["name"], self.namespace)
            elif not pod["status"].get("containerStatuses"):
                self.images[pod["spec"]["nodeName"]] = image
                await say_status(self.cluster, pod, crashing=image in self.crashing)
        except KubeRefusedError as error:
            if error.code not in (404, 409):
                raise


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def say_status(cluster: Cluster, pod: dict[str, Any], *, crashing: bool = False) -> None:
    """Set a pod's status as a kubelet would."""
    container, meta = pod["spec"]["containers"][0], pod["metadata"]
    state = {"waiting": {"reason": "CrashLoopBackOff"}} if crashing else {"running": {}}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False" if crashing else "True"}],
        "containerStatuses": [
            {
                "name": container["name"], "image": container["image"], "imageID": "", "ready": not crashing,
                "restartCount": 3 if crashing else 0, "state": state,
            }
        ],
    }  # fmt: skip
    path = resource_path("v1", "pods", meta["namespace"], meta["name"], "status")
    body = json.dumps({"metadata": {"uid": meta["uid"]}, "status": status}).encode()
    await cluster.client.call("PATCH", path, body=body, content_type=STRATEGIC)
