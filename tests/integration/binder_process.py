"""A binder that is killed at a point: ``binder_process.py NATS-URL KUBECONFIG before|after`` its first binding has been made."""

import asyncio
import os
import signal
import sys
from typing import Any

from bus.connection import Bus
from bus.kube.client import Client
from consumers.binder import pods
from consumers.binder.service import Binder

bind = pods.bind


async def bind_and_die(*arguments: Any) -> None:
    if sys.argv[3] == "after":
        await bind(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    pods.bind = bind_and_die
    async with await Bus.connect(sys.argv[1], name="binder") as bus, await Client.connect(sys.argv[2]) as client:
        await Binder(bus, client, "doomed").run(asyncio.Event())


asyncio.run(main())
