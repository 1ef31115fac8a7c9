"""Advice in a workload's status, by a field manager of its own beside that of whoever keeps the workers."""

from typing import Any, Final

import msgspec

from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import NOT_FOUND, KubeRefusedError
from consumers.scaler.external import quantities
from consumers.scaler.workloads import Asked
from schemas.kube.base import API_VERSION
from schemas.scaling import WorkloadUse

MANAGER: Final = "gpubus-scaler"
_PLURAL: Final = "tensorfusionworkloads"


class _Status(msgspec.Struct, rename="camel"):
    recommendation: dict[str, Any] | None = None
    active_cron_scaling_rule: dict[str, Any] | None = None
    applied_recommended_replicas: int = 0


class _Stated(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_stated = msgspec.json.Decoder(_Stated)


async def show(client: Client, asked: Asked, use: WorkloadUse) -> None:
    """Write the advice into the workload's status unless it says so already.

    Raises:
        KubeError: The API server did not take it.
    """
    namespace, name = asked.key
    advice = use.advice
    status: dict[str, Any] = {}
    if advice.source:
        status["recommendation"] = quantities(advice.resources)
    if use.applied:
        status["appliedRecommendedReplicas"] = use.applied
    if advice.rule:
        rule = next(rule for rule in asked.scaling.cron if rule.name == advice.rule)
        status["activeCronScalingRule"] = {
            "name": rule.name, "enable": True, "start": rule.start, "end": rule.end,
            "desiredResources": quantities(rule.desired),
        }  # fmt: skip
    path = resource_path(API_VERSION, _PLURAL, namespace, name)
    try:
        now = _stated.decode(await client.call("GET", path)).status
        rule_now = (now.active_cron_scaling_rule or {}).get("name")
        if (now.recommendation, rule_now, now.applied_recommended_replicas) == (
            status.get("recommendation"), advice.rule or None, use.applied,
        ):  # fmt: skip
            return
        document = {
            "apiVersion": API_VERSION, "kind": "TensorFusionWorkload", "metadata": {"name": name, "namespace": namespace},
            "status": status,
        }  # fmt: skip
        await client.call(
            "PATCH", f"{path}/status", query={"fieldManager": MANAGER, "force": "true"},
            body=msgspec.json.encode(document), content_type=APPLY,
        )  # fmt: skip
    except KubeRefusedError as error:
        if error.code != NOT_FOUND:
            raise
