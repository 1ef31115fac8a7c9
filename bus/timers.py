"""Server-side timers: the server publishes a message at an instant, or again and again, whether or not we live.

A timer is a message on ``gpubus.timer.<kind>.<name>`` that names a target subject in TICK; setting it again replaces it.
Ticks land in a work queue, so exactly one member of a group handles it.
"""

from datetime import datetime, timedelta

from bus.codec import encode
from bus.connection import Bus
from bus.streams import TICK
from bus.subjects import subject, work
from schemas.event import Event
from schemas.registry import Tick


def _tick(kind: str, name: str, at: datetime) -> bytes:
    event = Event(
        id=f"tick:{kind}:{name}",
        source="/gpubus/timer",
        type="gpubus.tick.v1",
        subject=f"{kind}/{name}",
        time=at,
        data=Tick(name=name),
    )
    return encode(event)


async def tick_every(bus: Bus, kind: str, name: str, interval: timedelta, *, now: datetime) -> None:
    """Put a tick on ``gpubus.work.tick.<kind>.<name>`` every ``interval`` (whole seconds, at least one)."""
    await _set(bus, kind, name, f"@every {max(int(interval.total_seconds()), 1)}s", now)


async def tick_at(bus: Bus, kind: str, name: str, at: datetime, *, now: datetime) -> None:
    """Put one tick on ``gpubus.work.tick.<kind>.<name>`` at the instant ``at`` (to about a quarter of a second)."""
    await _set(bus, kind, name, f"@at {at.isoformat(timespec='seconds')}", now)


async def _set(bus: Bus, kind: str, name: str, schedule: str, now: datetime) -> None:
    headers = {"Nats-Schedule": schedule, "Nats-Schedule-Target": work("tick", kind, name)}
    await bus.publisher.publish(subject("timer", kind, name), _tick(kind, name, now), headers=headers)


async def cancel(bus: Bus, kind: str, name: str) -> None:
    """Stop a timer; one that is not set stays not set."""
    await bus.api(f"STREAM.PURGE.{TICK}", {"filter": subject("timer", kind, name)})
