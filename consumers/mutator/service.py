"""The mutator's shell: answers admissions from the queue group ``gpubus.rpc.mutate``."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from bus.connection import Bus
from bus.errors import CallError
from bus.makers import Makers
from bus.rpc import LATER, Service
from consumers.mutator.context import Context
from consumers.mutator.counters import Counters, SlotsUnknownError
from consumers.mutator.mutate import Mutation, NotYetError, mutate, with_slot
from consumers.mutator.ports import written_into
from consumers.mutator.tensorfusion import needs_kube_scheduler
from schemas.admission import Admit, Admitted, Understood
from schemas.dialects import RequestError
from schemas.makers import Made
from schemas.remote import Owner

log = logging.getLogger("gpubus.mutator")

UNPROCESSABLE: Final = 422
UNAVAILABLE: Final = 503


class MutatorStatistics(msgspec.Struct):
    """Counters since the start."""

    changed: int = 0
    left: int = 0
    refused: int = 0


class Mutator:
    """One mutator process.

    Args:
        bus: The connection.
        name: Unique name of this process.
        context: Returns what operators have set, as it is now.
    """

    def __init__(self, bus: Bus, name: str, context: Callable[[], Context]) -> None:
        self._context = context
        self._counters = Counters(bus, name)
        self._makers = Makers(bus)
        self._services = (
            Service(bus, "mutate", Admit, self._admit, at_once=self._admit_at_once, concurrency=128),
            Service(bus, "mutate.ready", type(None), self._ready),
            Service(bus, "mutate.understand", Admit, self._understand, concurrency=4),
        )
        self.statistics = MutatorStatistics()

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Answer until ``stop`` is set; finish what has been begun."""
        await self._counters.start()
        for service in self._services:
            await service.start()
        if ready is not None:
            ready.set()
        await stop.wait()
        for service in self._services:
            await service.stop()
        await self._counters.stop()

    async def _ready(self, _: None) -> bool:
        return True

    async def _understand(self, request: Admit) -> Understood:
        """Say what the pod would ask for. Nothing comes of it, and no slot is looked at."""
        try:
            mutation = mutate(bytes(request.pod), request.namespace, request.uid, self._context())
        except RequestError as error:
            return Understood(refusal=str(error), field=error.field, value=error.value, fix=error.fix)
        warnings = mutation.warnings
        if needs_kube_scheduler(msgspec.json.decode(request.pod)["spec"]):
            warnings += ("affinity to other pods, topology spread, resource and volume claims are not looked at here",)
        return Understood(request=mutation.request, warnings=warnings)

    def _admit_at_once(self, request: Admit) -> object:
        """Admit what takes neither slot nor port: all that is needed for it is here."""
        found = self._mutate(request)
        if isinstance(found, Admitted):
            return found
        waits = found.slot is not None or found.port is not None or found.controller is not None
        return LATER if waits else self._changed(found)

    async def _admit(self, request: Admit) -> Admitted:
        found = self._mutate(request)
        if isinstance(found, Mutation) and found.controller is not None:
            found = await self._made_known(request, found.controller)
        if isinstance(found, Admitted):
            return found
        try:
            return await self._counted(request, found)
        except SlotsUnknownError as error:
            # Asking another mutator would end the same: the pod's controller is told at once, and creates it again.
            self.statistics.refused += 1
            return Admitted(allowed=False, message=f"gpubus: {error}", code=UNAVAILABLE)

    async def _counted(self, request: Admit, found: Mutation) -> Admitted:
        """Take what a pod needs beside its patch."""
        slot = found.slot
        if slot is not None:
            granted = await self._counters.take(
                slot.owner, slot.id, slot.limit, before=slot.before, dry_run=request.dry_run
            )
            if not granted:
                self.statistics.left += 1
                return Admitted(allowed=True, patch=found.left)
            found = msgspec.structs.replace(found, patch=with_slot(found.patch, slot, granted))
        if found.port is None:
            return self._changed(found)
        bounds = self._context().options.host_ports
        port = await self._counters.take_port(found.port, bounds, dry_run=request.dry_run)
        if not port:
            self.statistics.refused += 1
            text = (
                f"gpubus: all ports of nodes from {bounds[0]} to {bounds[1] - 1} are taken: widen clusterHostPortRange"
            )
            return Admitted(allowed=False, message=text, code=UNAVAILABLE)
        return self._changed(msgspec.structs.replace(found, patch=written_into(found.patch, found.port, port)))

    async def _made_known(self, request: Admit, controller: Owner) -> Mutation | Admitted:
        """Have somebody say what a pod's controller is, and return what becomes of the pod then."""
        try:
            made = await self._makers.ask(request.namespace, controller)
        except CallError as error:
            self.statistics.refused += 1
            text = (
                f"gpubus: nobody can say just now whether {controller.kind} {controller.name} has made the pod ({error}): "
                "see that a watcher runs, try again"
            )
            return Admitted(allowed=False, message=text, code=UNAVAILABLE)
        return self._mutate(request, lambda *_: made)

    def _mutate(self, request: Admit, makers: Callable[[str, Owner], Made | None] | None = None) -> Mutation | Admitted:
        """Return what becomes of a pod of ours, or the answer for one that is not, or is refused."""
        try:
            context = self._context()
            mutation = mutate(bytes(request.pod), request.namespace, request.uid, context, makers or self._makers.known)
        except RequestError as error:
            self.statistics.refused += 1
            code = UNAVAILABLE if isinstance(error, NotYetError) else UNPROCESSABLE
            return Admitted(allowed=False, message=f"gpubus: {error}", code=code)
        except Exception as error:
            # Asking again would end the same: the pod's user is told at once, and not when the webhook's time is over.
            log.exception("a pod of namespace %s cannot be judged", request.namespace)
            self.statistics.refused += 1
            text = f"gpubus: the pod cannot be judged: {type(error).__name__}: {error}: see the mutator's log"
            return Admitted(allowed=False, message=text, code=UNPROCESSABLE)
        if mutation.request is None:
            self.statistics.left += 1
            return Admitted(allowed=True, patch=mutation.patch)
        return mutation

    def _changed(self, mutation: Mutation) -> Admitted:
        self.statistics.changed += 1
        return Admitted(allowed=True, patch=mutation.patch, warnings=mutation.warnings)
