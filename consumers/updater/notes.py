"""Steps of rollouts as Kubernetes Events about their pool. Pure."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schemas.kube.base import API_VERSION
from schemas.rollout import Rollout, Step

NAMESPACE: Final = "default"
"""Where events about objects without a namespace go."""

CONTROLLER: Final = "gpubus.io/updater"
FRESH: Final = timedelta(minutes=10)
"""A step that is older has been told, or is news to nobody."""

_ACTIONS: Final[dict[Step, tuple[str, str]]] = {
    "started": ("RolloutStarted", "Update"),
    "superseded": ("RolloutSuperseded", "Update"),
    "waited": ("RolloutWaiting", "Wait"),
    "paused": ("RolloutPaused", "Pause"),
    "resumed": ("RolloutResumed", "Update"),
    "halted": ("RolloutHalted", "Halt"),
    "aborted": ("RolloutAborted", "Abort"),
    "rolled-back": ("RollingBack", "Rollback"),
    "completed": ("RolloutCompleted", "Update"),
}
"""What people want to hear of; batches show in the pool's status."""

_NOTE_LENGTH: Final = 1024
_NAME_LENGTH: Final = 200


def event_of(record: Rollout, now: datetime, instance: str) -> dict[str, Any] | None:
    """Return the Event of a step, or None for one that is not told. Its name is the step's own, so that it is told once."""
    if record.step not in _ACTIONS or now - record.changed_at > FRESH:
        return None
    reason, action = _ACTIONS[record.step]
    said = hashlib.blake2b(record.txn.encode(), digest_size=8).hexdigest()
    note = f"{record.component}: {record.message or record.phase}, {record.updated} of {record.total} updated"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{record.pool[:_NAME_LENGTH].rstrip('.-')}.{said}", "namespace": NAMESPACE},
        "eventTime": record.changed_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": action,
        "reason": reason,
        "type": "Warning" if record.step in ("halted", "aborted") else "Normal",
        "note": note[:_NOTE_LENGTH],
        "regarding": {"apiVersion": API_VERSION, "kind": "GPUPool", "name": record.pool},
    }
