"""The connections of a workload's clients in the API server: missing ones are made, those of clients that are gone removed."""

from typing import Final, NamedTuple

from consumers.workload.called import connection_document
from consumers.workload.connections import client_name, client_uid
from consumers.workload.founding import Founding
from consumers.workload.hands import CONNECTIONS, Hands
from consumers.workload.view import Key
from schemas.kube.base import API_VERSION
from schemas.kube.resources import TensorFusionConnection
from schemas.remote import RemoteClient

_FIX: Final = "delete it, so that the pod can be connected"


class Connected(NamedTuple):
    """Connections of a workload, and what is in the way of others; empty if nothing is."""

    connections: list[TensorFusionConnection]
    problem: str


class Connecting:
    """Makes and removes connections.

    Args:
        founding: Which clients are a workload's.
        hands: The API server.
    """

    def __init__(self, founding: Founding, hands: Hands) -> None:
        self._founding, self._hands = founding, hands

    async def connect(self, key: Key, there: list[TensorFusionConnection]) -> Connected:
        """Return the connections of a workload's clients, after making and removing what is to be.

        A connection stays for as long as its pod runs: only that the API server has that pod no more, or as ended, takes it away.

        Args:
            key: The workload.
            there: Its connections as they were before its clients were looked at.
        """
        clients = {client.uid: client for client in self._founding.clients(key)}
        kept: list[TensorFusionConnection] = []
        for one in there:
            uid = client_uid(one)
            if not uid:
                continue  # nobody could be told its URL
            if uid in clients or await self._runs(one):
                kept.append(one)
            else:
                await self._remove(one)
        connected, problem = {client_uid(one) for one in kept}, ""
        for uid in sorted(clients.keys() - connected):
            made = await self._make(key, clients[uid])
            if isinstance(made, TensorFusionConnection):
                kept.append(made)
            else:
                problem = problem or made
        return Connected(kept, problem)

    async def _make(self, key: Key, client: RemoteClient) -> TensorFusionConnection | str:
        """Make a client's connection and return it, or what is in the way; empty if it has to be looked at again."""
        document = connection_document(client)
        made = await self._hands.make_connection(key[0], document)
        if made is not None:
            return made
        found = await self._hands.connection(key[0], document["metadata"]["name"])
        if found is None:
            return ""  # it has gone in this moment
        if client_uid(found) == client.uid and found.metadata.labels.items() >= document["metadata"]["labels"].items():
            return found  # another process was faster
        if client_uid(found) == client.uid or (client_uid(found) and not await self._runs(found)):
            await self._remove(found)
            return await self._hands.make_connection(key[0], document) or ""
        return f"connection {found.metadata.name} is not of pod {client.name}: {_FIX}"

    async def _runs(self, one: TensorFusionConnection) -> bool:
        return await self._hands.runs(one.metadata.namespace, client_name(one), client_uid(one))

    async def _remove(self, one: TensorFusionConnection) -> None:
        meta = one.metadata
        await self._hands.remove(API_VERSION, CONNECTIONS, meta.namespace, meta.name, meta.uid)
