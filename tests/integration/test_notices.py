"""What happens to a pod's GPU is an Event on the pod."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bus import codec, subjects
from bus.connection import Bus
from schemas.event import Event
from schemas.observed import PodNotice
from tests.integration.cluster import Cluster, pod

pytestmark = pytest.mark.integration


async def notify(bus: Bus, made: dict[str, Any], reason: Any, *, ago: timedelta = timedelta()) -> None:
    meta, at = made["metadata"], datetime.now(UTC) - ago
    notice = PodNotice(
        namespace="default",
        name=meta["name"],
        pod_uid=meta["uid"],
        node="n",
        uuid="GPU-1",
        reason=reason,
        message="GPU 1 (GPU-1) of node n takes no new pods: XID 79.",
        at=at,
    )
    event = Event(id=f"{reason}:{at}", source="/t", type="gpubus.notice.v1", subject=meta["name"], time=at, data=notice)
    await bus.publisher.publish(
        subjects.notice("default", meta["name"], notice.node), codec.encode(event), msg_id=event.id
    )


async def test_a_pod_on_a_failing_gpu_gets_an_event_and_another_when_it_recovers(
    cluster: Cluster, bus: Bus, start
) -> None:
    made = await cluster.create(pod("train"))
    await notify(bus, made, "GpuUnhealthy", ago=timedelta(hours=2))  # long past: nobody is told
    await start("binder")
    await notify(bus, made, "GpuUnhealthy")
    await notify(bus, made, "GpuRecovered")
    async with asyncio.timeout(20):
        while len(events := await cluster.list("Event", "default", "events.k8s.io/v1")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    told = {event["reason"]: event for event in events}
    assert {reason: event["type"] for reason, event in told.items()} == {
        "GpuUnhealthy": "Warning",
        "GpuRecovered": "Normal",
    }
    assert told["GpuUnhealthy"]["regarding"]["uid"] == made["metadata"]["uid"]
    assert "takes no new pods: XID 79. (" in told["GpuUnhealthy"]["note"]
