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


def pool_status(record: Rollout, updated: int, total: int, *, refused: str = "", stuck: str = "") -> dict[str, Any]:
    """Return what one component's rollout adds to its ``GPUPool``, for a server-side apply of the status.

    Args:
        record: The rollout.
        updated: Members that run the template now.
        total: All members.
        refused: Why the pool's update policy cannot be followed; said whatever the rollout does, for it will update nothing more.
        stuck: What cannot be read, so that nothing goes on whatever the rollout says.

    Source: ``componentStatus`` of the contract; progress is the share of members that run the template, in percent.
    """
    name = record.component
    policy = f"the update policy cannot be followed, so nothing is updated: {refused}" if refused else ""
    message = (
        record.message if not policy or policy in record.message else "; ".join(filter(None, (record.message, policy)))
    )
    message = "; ".join(filter(None, (stuck, message)))
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
                    "status": "Unknown" if stuck else "True" if record.phase == "synced" else "False",
                    "reason": "Unreadable" if stuck else _reason(record, refused=bool(refused)),
                    "message": message,
                    "lastTransitionTime": record.changed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ],
        },
    }


def _reason(record: Rollout, *, refused: bool) -> str:
    if record.phase == "halted" and record.reason:
        return record.reason
    if refused and record.phase in ("synced", "outdated"):
        return "PolicyRefused"
    # A rollout that is held back before it, or between its batches, says by what.
    held = record.phase == "planned" and record.reason in ("AlertsFiring", "PoolGone")
    return record.reason if held else _REASONS[record.phase]
