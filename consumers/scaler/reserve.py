"""Placeholders in the API server: what keeps pools' warm reserves is looked at, made and deleted, each step idempotently."""

from collections.abc import Callable
from typing import Final

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from consumers.scaler.placeholders import IMAGE, LABEL, SHAPE, Present, Wanted, changes, pod_of
from schemas.dialects.view import POOL_KEY
from schemas.kube.core import KubePod
from schemas.kube.pools import GPUPoolSpec

NAMESPACE: Final = "tensor-fusion-sys"


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


_pods = msgspec.json.Decoder(_Pods)


class Reserve:
    """Placeholders of all pools, in one namespace of ours.

    Args:
        client: The API server.
        namespace: Where they are.
        image: What they run: something that does nothing, until it is told to end.
        step: Called with the name of every step, for tests that kill us there.
    """

    def __init__(
        self, client: Client, *, namespace: str = NAMESPACE, image: str = IMAGE, step: Callable[[str], None] = lambda _: None
    ) -> None:  # fmt: skip
        self._client = client
        self._step = step
        self._image = image or IMAGE
        self.namespace = namespace

    async def of(self, pool: str) -> tuple[Present, ...]:
        """Return a pool's placeholders.

        Raises:
            KubeError: The API server did not answer.
        """
        query = {"labelSelector": f"{LABEL}=true"}
        path = resource_path("v1", "pods", self.namespace)
        found = _pods.decode(await self._client.call("GET", path, query=query)).items
        return tuple(
            Present(
                name=pod.metadata.name,
                uid=pod.metadata.uid,
                shape=pod.metadata.annotations.get(SHAPE, ""),
                ended=pod.ended,
                leaving=bool(pod.metadata.deletion_timestamp),
            )
            for pod in found
            if pod.metadata.annotations.get(POOL_KEY) == pool
        )

    async def keep(
        self, pool: str, uid: str, spec: GPUPoolSpec, wanted: Wanted, present: tuple[Present, ...]
    ) -> tuple[int, int]:
        """Have exactly the placeholders that are wanted; return how many were made and deleted.

        Raises:
            KubeError: The API server did not take one; those before it stay as they are.
        """
        document = (
            pod_of(pool, uid, spec, wanted.chunk, namespace=self.namespace, image=self._image) if wanted.chunk else {}
        )
        shape = document["metadata"]["annotations"][SHAPE] if document else ""
        make, delete = changes(pool, wanted.number, shape, present)
        for one in delete:
            await self._delete(one)
            self._step("freed")
        made = 0
        for name in make:
            metadata = {**document["metadata"], "name": name}
            made += await self._create({**document, "metadata": metadata})
            self._step("reserved")
        return made, len(delete)

    async def drop(self, pool: str) -> None:
        """Delete all placeholders of a pool that is no more.

        Raises:
            KubeError: The API server did not take it.
        """
        for one in await self.of(pool):
            await self._delete(one)

    async def _create(self, document: dict[str, object]) -> bool:
        body = msgspec.json.encode(document)
        try:
            await self._client.call("POST", resource_path("v1", "pods", self.namespace), body=body)
        except KubeRefusedError as error:
            if error.code != CONFLICT:
                raise
            return False
        return True

    async def _delete(self, one: Present) -> None:
        body = msgspec.json.encode({"preconditions": {"uid": one.uid}})
        try:
            await self._client.call("DELETE", resource_path("v1", "pods", self.namespace, one.name), body=body)
        except KubeRefusedError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise
