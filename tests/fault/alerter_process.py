"""An alerter in a process of its own that dies where it is told to."""

import asyncio
import os
import signal
from multiprocessing.synchronize import Event

import msgspec

from bus.connection import Bus
from consumers.alerter import service
from consumers.alerter.service import Alerter
from consumers.metrics.settings import store

LEASE_S = 0.6
"""A killed alerter's tick goes to the next one after this."""


def run(url: str, metrics: str, victim_at: str, armed: Event) -> None:
    """Evaluate until ``armed`` is set and the step ``victim_at`` is reached; then die as a crash would."""
    asyncio.run(_run(url, metrics, victim_at, armed))


async def _run(url: str, metrics: str, victim_at: str, armed: Event) -> None:
    service.TICKS = msgspec.structs.replace(service.TICKS, ack_wait_s=LEASE_S)
    service.timers.keep_ticking = _never  # the test ticks by hand, faster than a timer would

    def step(name: str) -> None:
        if name == victim_at and armed.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    async with await Bus.connect(url, name="alerter") as bus:
        opened = await store(metrics).open()
        await Alerter(bus, f"a-{os.getpid()}", opened, step=step).run(asyncio.Event())


async def _never(*_: object, **__: object) -> bool:
    return False
