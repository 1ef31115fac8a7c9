"""The allocators and binders on the bus, as the extender's verbs need them."""

import asyncio
import contextlib

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import rpc, subjects
from bus.connection import Bus
from bus.errors import CallError
from schemas.extender import ExtenderBindingArgs, ExtenderBindingResult, Offer, Reserved

ANSWER_S = 2.0
TRY_FOR_S = 6.0
RETRY_PAUSE_S = 0.1
RESERVE_S = 10.0
BIND_S = 15.0
"""How long a binder may take once the place is reserved. All in all it is less than the 30 s that kube-scheduler waits."""

_result = msgspec.json.Decoder(ExtenderBindingResult)


class BusAllocators:
    """Asks any allocator; a pod is bound by a binder, which tells everybody what became of it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._binding: dict[str, asyncio.Future[str]] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to listen for what became of pods."""
        self._subscription = await self._bus.client.subscribe(subjects.bound("*"), cb=self._on_bound)

    async def stop(self) -> None:
        """Stop listening."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()

    async def filter(self, body: bytes) -> Offer:
        """Judge a pod; ask another allocator when one has died over it.

        Raises:
            CallError: Nobody could say in time.
        """
        return await self._ask("extender.filter", body)

    async def prioritize(self, body: bytes) -> Offer:
        """Say which nodes the pod's pool prefers.

        Raises:
            CallError: Nobody could say in time.
        """
        return await self._ask("extender.prioritize", body)

    async def _ask(self, service: str, body: bytes) -> Offer:
        clock = asyncio.get_running_loop().time
        deadline = clock() + TRY_FOR_S
        while True:
            try:
                return await rpc.call(self._bus, service, msgspec.Raw(body), Offer, timeout=ANSWER_S)
            except CallError:
                if clock() > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Reserve the pod's place and wait until it is bound; return why it is not, empty if it is.

        When it cannot be told in time the answer is an error too. Then the pod is found in the ledger when kube-scheduler asks
        again, and goes nowhere else.
        """
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._binding[args.uid] = outcome
        try:
            reserved = await rpc.call(self._bus, "extender.bind", args, Reserved, timeout=RESERVE_S)
            if reserved.error:
                return reserved.error
            async with asyncio.timeout(BIND_S):
                return await outcome
        except CallError as error:
            return str(error)
        except TimeoutError:
            return f"its place on {args.node} is reserved, and no binder has said within {BIND_S:g} s that it is bound"
        finally:
            if self._binding.get(args.uid) is outcome:
                del self._binding[args.uid]

    async def _on_bound(self, message: Msg) -> None:
        outcome = self._binding.get(subjects.names(message.subject)[-1])
        if outcome is not None and not outcome.done():
            outcome.set_result(_result.decode(message.data).error)
