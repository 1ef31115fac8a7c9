"""A rollout as the pool's status shows it to ``kubectl``. Pure."""

from typing import Any, Final

from consumers.updater.plan import FULL
from schemas.kube.base import API_VERSION
from schemas.rollout import Rollout

_CONDITIONS: Final = {"hypervisor": "HypervisorsUpdated", "worker": "WorkersUpdated", "client": "ClientsUpdated"}
_REASONS: Final = {
    "synced": "Updated", "outdated": "NotInSync", "planned": "Waiting", "window": "WindowClosed", "canary": "Updating",
    "batch": "Updating", "interval": "Updating", "paused": "Paused", "halted": "Halted", "aborted": "Aborted",
    "rolled-back": "RolledBack",
}  # fmt: skip


def pool_status(record: Rollout, updated: int, total: int) -> dict[str, Any]:
    """Return what one component's rollout adds to its ``GPUPool``, for a server-side apply of the status.

    Args:
        record: The rollout.
        updated: Members that run the template now.
        total: All members.

    Source: ``componentStatus`` of the contract; progress is the share of members that run the template, in percent.
    """
    name = record.component
    progress = FULL * updated // total if total else FULL
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": record.pool},
        "status": {
            "componentStatus": {
                name: record.target.hash,
                f"{name}ConfigSynced": record.phase == "synced",
                f"{name}UpdateProgress": progress,
            },
            "conditions": [
                {
                    "type": _CONDITIONS[name],
                    "status": "True" if record.phase == "synced" else "False",
                    "reason": record.reason if record.phase == "halted" and record.reason else _REASONS[record.phase],
                    "message": record.message,
                    "lastTransitionTime": record.changed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ],
        },
    }
