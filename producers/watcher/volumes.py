"""Which volume claims leave a pod free to run anywhere. No I/O."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from schemas.kube.core import ObjectMeta

BOUND: Final = "Bound"


class ClaimSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """``PersistentVolumeClaim.spec``."""

    volume_name: str = ""


class ClaimStatus(msgspec.Struct, frozen=True, gc=False):
    """``PersistentVolumeClaim.status``."""

    phase: str = ""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """``core/v1.PersistentVolumeClaim``."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class VolumeSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """``PersistentVolume.spec``."""

    node_affinity: dict[str, Any] | None = None


class PersistentVolume(msgspec.Struct, frozen=True, gc=False):
    """``core/v1.PersistentVolume``."""

    metadata: ObjectMeta
    spec: VolumeSpec = VolumeSpec()


class Claims:
    """Claims by namespace and name, with the volume of those that are bound."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.volumes: dict[tuple[str, str], str] = {}

    def put(self, item: Claim) -> None:
        """The claim is so."""
        bound = item.spec.volume_name if item.status.phase == BOUND else ""
        key = (item.metadata.namespace, item.metadata.name)
        if self.volumes.get(key) != bound:
            self.volumes[key] = bound
            self._changed()

    def gone(self, namespace: str, name: str, version: int) -> None:  # noqa: ARG002  a view is told, this one forgets
        """The claim is no more."""
        self.volumes.pop((namespace, name), None)

    def complete(self, version: int) -> None:
        """A list has ended."""


class Volumes:
    """Volumes by name, and whether they are tied to nodes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.tied: dict[str, bool] = {}

    def put(self, item: PersistentVolume) -> None:
        """The volume is so."""
        tied = item.spec.node_affinity is not None
        if self.tied.get(item.metadata.name) != tied:
            self.tied[item.metadata.name] = tied
            self._changed()

    def gone(self, namespace: str, name: str, version: int) -> None:  # noqa: ARG002  a view is told, this one forgets
        """The volume is no more."""
        self.tied.pop(name, None)

    def complete(self, version: int) -> None:
        """A list has ended."""


def problem(claims: Claims, volumes: Volumes, namespace: str, name: str) -> str:
    """Return why a pod that mounts the claim may not run anywhere; empty if it may."""
    volume = claims.volumes.get((namespace, name))
    if volume is None:
        return "does not exist"
    if not volume:
        return "is not bound, perhaps because it waits for its first consumer"
    if volumes.tied.get(volume, True):
        return f"is bound to volume {volume}, which is tied to certain nodes"
    return ""
