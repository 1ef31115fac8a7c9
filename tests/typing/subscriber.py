"""A program as others write it: it must type-check against the project's types."""

from typing import assert_type

from bus.connection import Bus
from bus.subscribe import Received, subscribe
from schemas.cluster import Node
from schemas.decision import Decision, GpuGrant, Outcome
from schemas.event import Event


async def follow(bus: Bus, after: int) -> int:
    async for received in subscribe(bus, Decision, after=after, namespace="ml"):
        assert_type(received, Received[Decision])
        assert_type(received.data, Decision)
        assert_type(received.data.outcome, Outcome)
        assert_type(received.data.gpus, tuple[GpuGrant, ...])
        after = received.seq
    async for node in subscribe(bus, Node):
        assert_type(node.event, Event[Node] | None)
        subscribe(bus, Node, after="yesterday")  # type: ignore[arg-type]
    return after
