"""How a workload that clients call for comes to be, and stays what they call for; nobody else's is touched.

What is stated with force takes fields over from whoever set them. So it goes to the object of one UID only: the one that was
made for clients, or that the watcher has told to be theirs. One of the same name that nobody has told of yet is left alone.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from bus.makers import Makers
from consumers.workload.called import Caller, caller_of, entitled, workload_document
from consumers.workload.hands import Hands
from consumers.workload.view import Key, View
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.remote import Owner, RemoteClient

log = logging.getLogger("gpubus.workload")

SHOWN: Final = 3
"""Clients that a message names."""


class Founding:
    """Who may call for which workload, and what was stated for them.

    Args:
        view: What is set, and which clients there are.
        hands: The API server.
        makers: Says who has made clients.
    """

    def __init__(self, view: View, hands: Hands, makers: Makers) -> None:
        self._view, self._hands, self._makers = view, hands, makers
        self._clients: dict[Key, list[RemoteClient]] = {}
        self._applied: dict[Key, tuple[str, bytes]] = {}
        self._strangers: dict[Key, dict[str, str]] = {}

    def forget(self, key: Key) -> None:
        """The workload is no more."""
        self._applied.pop(key, None)
        self._clients.pop(key, None)
        self._strangers.pop(key, None)

    def clients(self, key: Key) -> list[RemoteClient]:
        """Return a workload's clients, as :meth:`settle` has found them."""
        return self._clients.get(key, [])

    async def _sort(self, key: Key) -> list[Caller]:
        """Tell a workload's clients from others that call for it, which change nothing.

        Raises:
            CallError: Nobody can say just now who has made one of them.
        """
        calling = self._view.clients(key)
        callers = [found for one in calling if (found := caller_of(one, await self._top(one))) is not None]
        callers = entitled(callers, self._view.workload(key))
        self._clients[key] = [one.client for one in callers]
        ours = {one.client.uid for one in callers}
        strangers = {one.uid: one.name for one in calling if one.uid not in ours}
        if strangers and self._strangers.get(key) != strangers:
            log.warning("workload %s: %s", "/".join(key), refusal(strangers.values()))
        self._strangers[key] = strangers
        return callers

    async def _top(self, client: RemoteClient) -> Owner | None:
        owner = client.owner
        if owner.kind == "Pod" and owner.uid == client.uid:
            return None
        return (await self._makers.ask(client.namespace, owner)).top

    def strangers(self, key: Key) -> dict[str, str]:
        """Return the names of pods that call for a workload that is not theirs, by UID."""
        return self._strangers.get(key, {})

    async def settle(self, key: Key) -> bool:
        """Have the API server hold the workload that clients call for; False if what is known of it is not that yet.

        Raises:
            CallError: Nobody can say just now who has made one of them.
            KubeError: The API server would not, or gave no answer.
        """
        callers, known = await self._sort(key), self._view.workload(key)
        if not callers:
            return True
        document = workload_document(callers)
        said = msgspec.json.encode(document, order="sorted")
        includes = known is not None and _includes(known.spec, document["spec"])
        uid = known.metadata.uid if known is not None else await self._hands.make_workload(key, document)
        if not uid:
            return False  # somebody has made one, or one is being deleted: we shall hear of it
        first = self._applied.get(key) != (uid, said)
        if first or not includes:
            if not await self._hands.apply_workload(key, uid, document):
                return False  # it is another by now, and we shall hear of that
            self._applied[key] = (uid, said)
        return includes or (known is not None and not first)


def refusal(strangers: Iterable[str]) -> str:
    """Return what those should know whose pods, of these names, call for a workload that is not theirs."""
    strangers = sorted(strangers)
    more = f" and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
    return (
        f"it is not the workload of the pods {', '.join(strangers[:SHOWN])}{more}, which call for one of this name and get no "
        "worker: rename what makes them, or this"
    )


def _includes(spec: WorkloadProfileSpec, wanted: dict[str, Any]) -> bool:
    """Return whether a workload says all of what its clients call for, whatever else it says."""
    said, asked = msgspec.to_builtins(spec), msgspec.to_builtins(msgspec.convert(wanted, WorkloadProfileSpec))
    return all(said.get(key) == value for key, value in asked.items())
