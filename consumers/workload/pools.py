"""What a pool's condition says of workers that cannot be made as it wants them: once for all workloads, and while it is so."""

import logging
from datetime import UTC, datetime
from typing import Any, Final

from bus.kube.errors import KubeError, KubeRefusedError
from consumers.workload.hands import Hands
from consumers.workload.view import Key
from schemas.kube.base import API_VERSION, Condition
from schemas.kube.workloads import WorkloadProfileSpec

log = logging.getLogger("gpubus.workload")

TYPE: Final = "WorkersAccepted"
_INVALID: Final = (400, 422)


def blamed(error: KubeRefusedError, spec: WorkloadProfileSpec) -> str:
    """Return what is wrong with a pool's template by the API server's word; empty if it is not known to be at fault.

    A workload that states something of its workers' pods itself may be, and so may a quota, or who admits pods.

    Args:
        error: What the API server said of a worker.
        spec: The worker's workload.
    """
    itself = error.code in _INVALID and (error.kind == "Pod" or error.reason == "BadRequest")
    if not itself or spec.worker_pod_template or spec.node_affinity is not None:
        return ""
    return error.message.partition(" is invalid: ")[2] or error.message


def condition(refusals: dict[Key, str]) -> Condition:
    """Return what a pool says of its workers, given why some workloads' were refused."""
    if not refusals:
        return Condition(
            type=TYPE, status="True", reason="TemplateAccepted", message="workers are made of its template"
        )
    first = min(refusals)
    more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
    text = f"the API server refuses workers made of its template: {refusals[first]} (workload {'/'.join(first)}{more})"
    return Condition(type=TYPE, status="False", reason="TemplateRefused", message=text)


class Pools:
    """Conditions of pools, as far as workers have been asked for.

    Args:
        hands: The API server.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._refusals: dict[str, dict[Key, str]] = {}
        self._of: dict[Key, str] = {}
        self._said: dict[str, Condition] = {}

    async def forget(self, key: Key) -> None:
        """A workload is no more."""
        pool = self._of.pop(key, "")
        if pool:
            self._refusals[pool].pop(key, None)
            await self._say(pool)

    async def tell(self, key: Key, pool: str, refusal: str) -> None:
        """A workload of the pool was looked at: its workers were refused for this, or for nothing that is the pool's fault."""
        if self._of.get(key, pool) != pool:
            await self.forget(key)
        self._of[key] = pool
        known = self._refusals.setdefault(pool, {})
        if refusal:
            known[key] = refusal
        else:
            known.pop(key, None)
        await self._say(pool)

    async def _say(self, pool: str) -> None:
        """Write a pool's condition if it says something new; best effort, for the next look does it again."""
        wanted = condition(self._refusals[pool])
        if self._said.get(pool) == wanted:
            return
        try:
            before = await self._hands.pool_condition(pool, TYPE)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if before is None and wanted.status == "True":
                pass  # nothing was ever wrong: it need not be said
            elif before is None or (before.status, before.message) != (wanted.status, wanted.message):
                since = before.last_transition_time if before is not None and before.status == wanted.status else now
                await self._hands.show_pool(_document(pool, wanted, since))
        except KubeError as error:
            log.warning("pool %s cannot be told what is wrong with its workers: %s", pool, error)
            return
        self._said[pool] = wanted


def _document(pool: str, wanted: Condition, since: str) -> dict[str, Any]:
    said = {
        "type": wanted.type, "status": wanted.status, "reason": wanted.reason, "message": wanted.message,
        "lastTransitionTime": since,
    }  # fmt: skip
    return {"apiVersion": API_VERSION, "kind": "GPUPool", "metadata": {"name": pool}, "status": {"conditions": [said]}}
