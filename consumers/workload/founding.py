"""How a workload that clients call for comes to be, stays what they call for, and ends; nobody else's is touched.

Who uses its workers already goes on doing so for as long as its pod runs, whatever becomes of what made that: only what is new,
a workload, a connection or another spec, needs the API server's word for who calls for it.

What is stated with force takes fields over from whoever set them. So it goes to the object of one UID only: the one that was
made for clients, or that the watcher has told to be theirs. One of the same name that nobody has told of yet is left alone.
"""

import logging
from collections.abc import Collection
from typing import Any, Final

import msgspec

from bus.errors import CallError
from bus.makers import Makers
from consumers.workload.called import Caller, caller_of, entitled, maker_in, workload_document
from consumers.workload.hands import WORKLOADS, Hands
from consumers.workload.refused import GONE, TAKEN, UNKNOWN, Refused
from consumers.workload.view import Key, View
from schemas.kube.base import API_VERSION
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.remote import WORKLOAD_MAKER, RemoteClient

log = logging.getLogger("gpubus.workload")

FRESH_S: Final = 10.0
"""How old what is known of a controller may be where it speaks against somebody."""


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
        self._refused: dict[Key, list[Refused]] = {}

    def forget(self, key: Key) -> None:
        """The workload is no more."""
        self._applied.pop(key, None)
        self._clients.pop(key, None)
        self._refused.pop(key, None)

    def clients(self, key: Key) -> list[RemoteClient]:
        """Return a workload's clients, as :meth:`settle` has found them."""
        return self._clients.get(key, [])

    def refused(self, key: Key) -> list[Refused]:
        """Return the pods that call for a workload and get no worker, and why."""
        return self._refused.get(key, [])

    async def _sort(self, key: Key, seated: Collection[str]) -> list[Caller]:
        """Tell a workload's clients from others that call for it, which change nothing, and return those that may state it.

        Args:
            key: The workload.
            seated: UIDs of pods that use its workers already: they are its clients.
        """
        calling, known = self._view.clients(key), self._view.workload(key)
        callers, refused = [], []
        for one in calling:
            if one.ending:
                continue  # it keeps what it has, and calls for nothing
            found = await self._caller(one)
            if isinstance(found, Refused):
                refused.append(found)
            else:
                callers.append(found)
        ours = known is None or WORKLOAD_MAKER in known.metadata.annotations
        adopted = not ours and bool(callers) and await self._hands.made_by_us(key)
        theirs = entitled(callers, None if adopted else known)
        members = {*seated, *(one.client.uid for one in theirs)}
        refused += [Refused(one.client.name, one.client.uid, TAKEN) for one in callers if one not in theirs]
        refused = [one for one in refused if one.uid not in members]
        if refused and self._refused.get(key) != refused:
            log.warning("workload %s: pods that get no worker: %s", "/".join(key), refused)
        self._clients[key] = [one for one in calling if one.uid in members]
        self._refused[key] = refused
        return theirs

    async def _caller(self, client: RemoteClient) -> Caller | Refused:
        """Return whose a client is by the API server's word, or why it is not known to be anybody's."""
        owner = client.owner
        bare = owner.kind == "Pod" and owner.uid == client.uid
        if bare:
            return caller_of(client, None) or Refused(client.name, client.uid, GONE)
        try:
            made = await self._makers.ask(client.namespace, owner)
            if caller_of(client, made.top) is None:
                made = await self._makers.ask(client.namespace, owner, FRESH_S)
        except CallError as error:
            return Refused(client.name, client.uid, UNKNOWN, str(error))
        if (caller := caller_of(client, made.top)) is not None:
            return caller
        if made.problem and not made.gone:
            return Refused(client.name, client.uid, UNKNOWN, made.problem)
        return Refused(client.name, client.uid, GONE if made.gone else TAKEN)

    async def settle(self, key: Key, seated: Collection[str]) -> bool:
        """Have the API server hold the workload that clients call for; False if what is known of it is not that yet.

        Args:
            key: The workload.
            seated: UIDs of pods that use its workers already.

        Raises:
            KubeError: The API server would not, or gave no answer.
        """
        callers, known = await self._sort(key, seated), self._view.workload(key)
        if not callers:
            return True
        document = workload_document(callers)
        said = msgspec.json.encode(document, order="sorted")
        includes = known is not None and _includes(known.spec, document["spec"])
        uid = known.metadata.uid if known is not None else await self._hands.make_workload(key, document)
        if not uid:
            return False  # somebody has made one, or one is being deleted: we shall hear of it
        unmarked = known is not None and WORKLOAD_MAKER not in known.metadata.annotations
        first = self._applied.get(key) != (uid, said) or unmarked
        if first or not includes:
            if not await self._hands.apply_workload(key, uid, document):
                return False  # it is another by now, and we shall hear of that
            self._applied[key] = (uid, said)
        return includes or (known is not None and not first)

    async def end(self, key: Key, workload: TensorFusionWorkload) -> bool:
        """Remove a workload that nobody needs any more, and return whether it was.

        That is one which clients have called for, of whose clients none is left and whose maker is gone, both by the API server's
        answer just now. One that was written by hand stays, and so does any of which this is not known.

        Raises:
            CallError, KubeError: Nobody can say just now.
        """
        maker = maker_in(workload)
        if maker is None or self._view.clients(key):
            return False
        if maker.kind != "Pod" and not (await self._makers.ask(key[0], maker, FRESH_S)).gone:
            return False
        if await self._hands.called(key):
            return False
        await self._hands.remove(API_VERSION, WORKLOADS, *key, workload.metadata.uid)
        return True


def _includes(spec: WorkloadProfileSpec, wanted: dict[str, Any]) -> bool:
    """Return whether a workload says all of what its clients call for, whatever else it says."""
    said, asked = msgspec.to_builtins(spec), msgspec.to_builtins(msgspec.convert(wanted, WorkloadProfileSpec))
    return all(said.get(key) == value for key, value in asked.items())
