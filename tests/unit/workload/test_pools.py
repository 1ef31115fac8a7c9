"""What of a worker that was refused is its pool's fault, and how the pool says so once for all workloads."""

from typing import Any

import msgspec
import pytest

from bus.kube.errors import KubeRefusedError, Status, StatusDetails
from consumers.workload.pools import blamed, condition
from schemas.kube.workloads import WorkloadProfileSpec

INVALID = 'Pod "web-tf-worker-0" is invalid: spec.containers[0].image: Required value'


def refused(code: int, reason: str, message: str, kind: str = "") -> KubeRefusedError:
    details = StatusDetails(kind=kind, name="web-tf-worker-0" if kind else "")
    return KubeRefusedError("POST pods", Status(code=code, reason=reason, message=message, details=details))


@pytest.mark.parametrize(
    ("error", "spec", "said"),
    [
        (refused(422, "Invalid", INVALID, "Pod"), {}, "spec.containers[0].image: Required value"),
        (refused(400, "BadRequest", "json: cannot unmarshal"), {}, "json: cannot unmarshal"),
        (refused(422, "Invalid", INVALID, "Pod"), {"workerPodTemplate": {"spec": {"x": 1}}}, ""),
        (refused(422, "Invalid", INVALID, "Pod"), {"nodeAffinity": {"x": 1}}, ""),
        (refused(422, "Invalid", 'admission webhook "mpod" denied the request: gpubus: no'), {}, ""),
        (refused(403, "Forbidden", "exceeded quota", "pods"), {}, ""),
    ],
)
def test_a_template_is_at_fault_where_nothing_else_can_be(
    error: KubeRefusedError, spec: dict[str, Any], said: str
) -> None:
    assert blamed(error, msgspec.convert(spec, WorkloadProfileSpec)) == said


def test_many_refusals_are_one_condition_that_changes_with_the_first_alone() -> None:
    one = condition({("ns", "b"): "x", ("ns", "a"): "y"})
    assert (one.status, one.reason) == ("False", "TemplateRefused")
    assert one.message.endswith("made of its template: y (workload ns/a, and 1 more)")
    assert condition({}).status == "True"
