"""Asks a watcher who has made a pod, and remembers the answer: a controller is what it is as long as it has its UID."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from bus import rpc
from bus.connection import Bus
from schemas.makers import Made, WhoMade
from schemas.remote import Owner

SERVICE: Final = "maker"
TIMEOUT_S: Final = 4.0
REMEMBERED: Final = 8192
KNOWN_S: Final = 600.0
"""How long it counts what a controller is."""

UNKNOWN_S: Final = 10.0
"""How long it counts that nothing is known of one: an operator may let the watcher look at its kind."""


class Makers:
    """What is known of controllers.

    Args:
        bus: The connection.
        clock: Returns seconds; for how long answers count.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus, self._clock = bus, clock
        self._known: dict[tuple[str, Owner], tuple[float, Made]] = {}
        """When each was said, and what."""

        self._asking: dict[tuple[str, Owner], asyncio.Task[Made]] = {}
        """All pods of a new controller come at once: it is asked for once."""

    def known(self, namespace: str, owner: Owner) -> Made | None:
        """Return what is known of a controller without asking; None if it has to be asked for."""
        return self._known_for(namespace, owner, KNOWN_S)

    def _known_for(self, namespace: str, owner: Owner, counts_s: float) -> Made | None:
        said = self._known.get((namespace, owner))
        if said is None:
            return None
        at, made = said
        lasts = min(counts_s, UNKNOWN_S if made.problem else KNOWN_S)
        return made if self._clock() - at < lasts else None

    async def ask(self, namespace: str, owner: Owner, counts_s: float = KNOWN_S) -> Made:
        """Return what is known of a controller.

        Args:
            namespace: Where it is.
            owner: The controller.
            counts_s: How old an answer may be: what is to be taken away from somebody is asked for anew.

        Raises:
            CallError: Nobody can say just now.
        """
        if (made := self._known_for(namespace, owner, counts_s)) is not None:
            return made
        key = (namespace, owner)
        if (asking := self._asking.get(key)) is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(namespace, owner), name=f"maker-{owner.uid}")
            asking.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asking)

    def _answered(self, key: tuple[str, Owner], done: asyncio.Task[Made]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever asked has it, unless they wait no more

    async def _ask(self, namespace: str, owner: Owner) -> Made:
        asked = WhoMade(namespace=namespace, owner=owner)
        made = await rpc.call(self._bus, SERVICE, asked, Made, timeout=TIMEOUT_S)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[namespace, owner] = (self._clock(), made)
        return made
