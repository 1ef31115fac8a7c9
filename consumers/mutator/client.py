"""What a pool puts into one pod at admission, from the template that counts for it. Pure."""

from typing import Any

import msgspec

from consumers.mutator.options import Images
from schemas.event import utc
from schemas.rollout import Member, Template
from schemas.rollout_template import member_hashes


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What is put into a pod.

    Attributes:
        hash: What the pod is labelled with, so that one that has become out of date is known.
        images: Images of its vendor, or of its pool where the vendor's provider names none.
        patch: What is merged into each container with GPUs. Source: ``patchToContainer`` of the contract.
        pod_patch: What is merged into pods that use GPUs of other nodes. Source: ``patchToPod``.
        endpoint: Where such a pod asks for its worker. Source: ``operatorEndpoint``.
    """

    hash: str
    images: Images
    patch: dict[str, Any] = {}
    pod_patch: dict[str, Any] = {}
    endpoint: str = ""


def client_of(template: Template, pool: str, vendor: str) -> Client:
    """Return what a template puts into pods of a pool with GPUs of a vendor."""
    member = Member(pool=pool, component="client", name="", uid="", hash="", created_at=utc(0), vendor=vendor)
    stated = template.rendered
    return Client(
        hash=member_hashes(template)(member),
        images=Images(
            limiter=template.images.get(f"{vendor}/middleware", ""),
            client=template.images.get(f"{vendor}/remoteClient") or stated.get("remoteModeImage", ""),
            worker=template.images.get(f"{vendor}/remoteWorker") or stated.get("embeddedModeImage", ""),
        ),
        patch=stated.get("patchToContainer") or {},
        pod_patch=stated.get("patchToPod") or {},
        endpoint=stated.get("operatorEndpoint", ""),
    )
