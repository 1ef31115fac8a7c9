"""Claims and nodes in the API server: what a plan asks for, done idempotently."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from consumers.scaler.offers import claim_spec, offer_of
from consumers.scaler.sizes import Claim, Order, claim_name
from schemas.capacity import Offer
from schemas.dialects.text import RequestError
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION
from schemas.kube.core import KubePod, ObjectMeta
from schemas.kube.nodes import GPUNodeClaimSpec, GPUNodeClaimStatus
from schemas.quantity import QuantityError

_PLURAL: Final = "gpunodeclaims"
REASON: Final = "tensor-fusion.ai/claim-reason"
MIRROR: Final = "kubernetes.io/config.mirror"


class _Claim(msgspec.Struct):
    metadata: ObjectMeta
    spec: GPUNodeClaimSpec = GPUNodeClaimSpec()
    status: GPUNodeClaimStatus = GPUNodeClaimStatus()


class _Named(msgspec.Struct):
    metadata: ObjectMeta


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


class _Claims(msgspec.Struct):
    items: list[msgspec.Raw] = []


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a pool.

    Attributes:
        claims: Those that can be understood.
        refused: What is wrong with the others.
        names: Names of all claims there are, other pools' too: a name is given once.
        bound: Claims of which the provisioner says that their node is there.
    """

    claims: tuple[Claim, ...]
    refused: tuple[str, ...]
    names: frozenset[str]
    bound: frozenset[str]


_claims = msgspec.json.Decoder(_Claims)
_claim = msgspec.json.Decoder(_Claim)
_named = msgspec.json.Decoder(_Named)
_pods = msgspec.json.Decoder(_Pods)


class Claims:
    """The claims of pools, read from the API server whenever they are asked for: a cache might order a node twice."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of(self, pool: str, offers: tuple[Offer, ...], known: Mapping[str, datetime], now: datetime) -> Found:
        """Return a pool's claims; ``known`` says since when claims have been known. The API server's clock may be another one.

        Raises:
            KubeError: The API server did not answer.
        """
        items = _claims.decode(await self._client.call("GET", resource_path(API_VERSION, _PLURAL))).items
        found, refused, names, bound = [], [], set(), set()
        for raw in items:
            meta = _named.decode(raw).metadata
            names.add(meta.name)
            if meta.annotations.get(POOL_KEY) != pool:
                continue
            try:
                item = _claim.decode(raw)
                offer = offer_of(item.spec, offers)
            except (RequestError, QuantityError, msgspec.ValidationError) as error:
                refused.append(f"claim {meta.name}: {error}")
                continue
            if item.status.phase == "Bound":
                bound.add(meta.name)
            found.append(
                Claim(
                    name=meta.name,
                    offer=offer,
                    made_at=known.get(meta.name, now),
                    node=item.spec.node_name,
                    uid=meta.uid,
                    ending=bool(meta.deletion_timestamp),
                )
            )
        return Found(claims=tuple(found), refused=tuple(refused), names=frozenset(names), bound=frozenset(bound))

    async def make(self, pool: str, node_class: str, order: Order) -> bool:
        """Claim a node; return False if somebody else has claimed it under that name.

        Raises:
            KubeError: The API server did not take it.
        """
        name = claim_name(pool, order.number)
        document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "GPUNodeClaim",
            "metadata": {
                "name": name,
                # No owner: whoever deletes a pool by mistake must not lose the nodes that pods are on.
                "annotations": {POOL_KEY: pool, REASON: f"{order.reason}: {order.message}"},
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

    async def drop(self, claim: Claim) -> None:
        """Delete exactly this claim; one that is gone stays gone.

        Raises:
            KubeError: The API server did not take it.
        """
        body = msgspec.json.encode({"preconditions": {"uid": claim.uid}})
        try:
            await self._client.call("DELETE", resource_path(API_VERSION, _PLURAL, "", claim.name), body=body)
        except KubeRefusedError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    async def is_there(self, node: str) -> bool:
        """Ask the API server whether there is a node of that name.

        Raises:
            KubeError: The API server did not answer.
        """
        try:
            await self._client.call("GET", resource_path("v1", "nodes", "", node))
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    async def busy(self, node: str) -> str:
        """Ask the API server what is on a node, or says that it must stay: daemons and what has ended do not count.

        Raises:
            KubeError: The API server did not answer.
        """
        query = {"fieldSelector": f"spec.nodeName={node}"}
        for pod in _pods.decode(await self._client.call("GET", resource_path("v1", "pods"), query=query)).items:
            owners = {owner.kind for owner in pod.metadata.owner_references}
            if not pod.ended and not owners & {"DaemonSet", "Node"} and MIRROR not in pod.metadata.annotations:
                return f"pod {pod.metadata.namespace}/{pod.metadata.name} is on it"
        return ""
