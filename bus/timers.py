"""Server-side timers: the server publishes a message at an instant, or again and again, whether or not we live.

A timer is a message on ``gpubus.timer.<kind>.<name>`` that names a target subject in TICK; setting it again replaces it.
Ticks land in a work queue, so exactly one member of a group handles it.
"""

from datetime import datetime, timedelta

from bus.codec import decode_as, encode
from bus.connection import Bus
from bus.records import latest
from bus.streams import TICK
from bus.subjects import subject, work
from schemas.event import Event
from schemas.registry import Tick


def _tick(kind: str, name: str, at: datetime, *, every_s: int = 0) -> bytes:
    event = Event(
        id=f"tick:{kind}:{name}",
        source="/gpubus/timer",
        type="gpubus.tick.v1",
        subject=f"{kind}/{name}",
        time=at,
        data=Tick(name=name, every_s=every_s),
    )
    return encode(event)


async def tick_every(bus: Bus, kind: str, name: str, interval: timedelta, *, now: datetime) -> None:
    """Put a tick on ``gpubus.work.tick.<kind>.<name>`` every ``interval`` (whole seconds, at least one)."""
    await _set(bus, kind, name, f"@every {max(int(interval.total_seconds()), 1)}s", _tick(kind, name, now))


async def keep_ticking(bus: Bus, kind: str, name: str, interval: timedelta, *, now: datetime) -> bool:
    """Like :func:`tick_every`, but leave a timer of that interval in its rhythm; return whether it had to be set.

    Setting it again would start its interval anew: processes that come and go would keep it from ever ticking. A tick that
    nobody takes within two intervals is dropped.

    Raises:
        BusError: The server did not answer.
    """
    seconds = max(int(interval.total_seconds()), 1)
    stored = await latest(bus, TICK, subject("timer", kind, name))
    event = _tick(kind, name, now, every_s=seconds)
    if stored.payload and decode_as(Tick, stored.payload).data.every_s == seconds:
        return False
    headers = {"Nats-Schedule-TTL": f"{2 * seconds}s"}
    await _set(bus, kind, name, f"@every {seconds}s", event, more=headers)
    return True


async def tick_at(bus: Bus, kind: str, name: str, at: datetime, *, now: datetime) -> None:
    """Put one tick on ``gpubus.work.tick.<kind>.<name>`` at the instant ``at`` (to about a quarter of a second)."""
    await _set(bus, kind, name, f"@at {at.isoformat(timespec='seconds')}", _tick(kind, name, now))


async def _set(
    bus: Bus, kind: str, name: str, schedule: str, event: bytes, *, more: dict[str, str] | None = None
) -> None:
    headers = {"Nats-Schedule": schedule, "Nats-Schedule-Target": work("tick", kind, name), **(more or {})}
    await bus.publisher.publish(subject("timer", kind, name), event, headers=headers)


async def cancel(bus: Bus, kind: str, name: str) -> None:
    """Stop a timer; one that is not set stays not set."""
    await bus.api(f"STREAM.PURGE.{TICK}", {"filter": subject("timer", kind, name)})
