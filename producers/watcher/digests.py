"""What tells one content from another: short digests, so that nothing need be held whole to be compared. Pure."""

import hashlib
from typing import Final

import msgspec

from bus.codec import encode
from schemas.pod import Pod

BYTES: Final = 12


def digest(value: msgspec.Struct) -> bytes:
    """Return a short digest of an object's content; a pod's version is not part of it."""
    if isinstance(value, Pod):
        return pod_digest(value, digest(value.request))
    return _short(encode(value))


def pod_digest(pod: Pod, asks: bytes) -> bytes:
    """Return the digest of a pod of whose request the digest is ``asks``: what is alike in many pods is encoded once."""
    own = (pod.namespace, pod.name, pod.uid, pod.phase, pod.node, pod.labels, pod.created_at)
    return _short(encode(own) + asks)


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=BYTES).digest()
