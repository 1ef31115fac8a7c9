"""Claims and nodes in the API server: what a plan asks for, done idempotently."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from bus.kube.client import MERGE, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from consumers.scaler.offers import claim_spec, offer_of
from consumers.scaler.sizes import LEAVING_LABEL, Claim, Order, claim_name
from schemas.capacity import Offer
from schemas.dialects.text import RequestError
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION
from schemas.kube.core import ObjectMeta
from schemas.kube.nodes import GPUNodeClaimSpec
from schemas.quantity import QuantityError

_PLURAL: Final = "gpunodeclaims"
REASON: Final = "tensor-fusion.ai/claim-reason"


class _Claim(msgspec.Struct):
    metadata: ObjectMeta
    spec: GPUNodeClaimSpec = GPUNodeClaimSpec()


class _Claims(msgspec.Struct):
    items: list[_Claim] = []


_claims = msgspec.json.Decoder(_Claims)


class Claims:
    """The claims of pools, read from the API server whenever they are asked for: a cache might order a node twice."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of(
        self, pool: str, offers: tuple[Offer, ...], known: Mapping[str, datetime], now: datetime
    ) -> tuple[list[Claim], list[str]]:
        """Return a pool's claims, and what is wrong with those that cannot be understood.

        ``known`` says since when claims have been known. The API server's clock may be another one than ours.

        Raises:
            KubeError: The API server did not answer.
        """
        items = _claims.decode(await self._client.call("GET", resource_path(API_VERSION, _PLURAL))).items
        found, refused = [], []
        for item in items:
            meta = item.metadata
            if meta.annotations.get(POOL_KEY) != pool:
                continue
            try:
                offer = offer_of(item.spec, offers)
            except (RequestError, QuantityError) as error:
                refused.append(f"claim {meta.name}: {error}")
                continue
            found.append(
                Claim(
                    name=meta.name,
                    offer=offer,
                    made_at=known.get(meta.name, now),
                    node=item.spec.node_name,
                    ending=bool(meta.deletion_timestamp),
                )
            )
        return found, refused

    async def make(self, pool: str, uid: str, node_class: str, order: Order) -> bool:
        """Claim a node; return False if somebody else has claimed it under that name.

        Raises:
            KubeError: The API server did not take it.
        """
        name = claim_name(pool, order.number)
        owner = {"apiVersion": API_VERSION, "kind": "GPUPool", "name": pool, "uid": uid, "controller": True}
        document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "GPUNodeClaim",
            "metadata": {
                "name": name,
                "annotations": {POOL_KEY: pool, REASON: f"{order.reason}: {order.message}"},
                "ownerReferences": [owner],
            },
            "spec": claim_spec(order.offer, name, node_class),
        }
        try:
            await self._client.call("POST", resource_path(API_VERSION, _PLURAL), body=msgspec.json.encode(document))
        except KubeRefusedError as error:
            if error.code != CONFLICT:
                raise
            return False
        return True

    async def drop(self, name: str) -> None:
        """Delete a claim; one that is gone stays gone.

        Raises:
            KubeError: The API server did not take it.
        """
        try:
            await self._client.call("DELETE", resource_path(API_VERSION, _PLURAL, "", name))
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise

    async def close(self, node: str, *, leaving: bool) -> None:
        """Close a node to pods and mark it as one that is to go, or take both back.

        Raises:
            KubeError: The API server did not take it.
        """
        body = {
            "metadata": {"labels": {LEAVING_LABEL: "true" if leaving else None}},
            "spec": {"unschedulable": leaving or None},
        }
        try:
            await self._client.call(
                "PATCH", resource_path("v1", "nodes", "", node), body=msgspec.json.encode(body), content_type=MERGE
            )
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
