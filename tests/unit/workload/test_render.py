"""Workers' pods: the pool's template, what the workload adds, and a request that is read as any other pod's."""

from typing import Any

import msgspec
import pytest

from consumers.workload.render import worker_pod
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults, parse_pod
from schemas.kube.components import component_specs
from schemas.kube.core import KubePod
from schemas.kube.pools import GPUPoolSpec
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.views import view_of
from schemas.pod import GpuRequest

AMOUNTS = {"requests": {"tflops": "10", "vram": "4Gi"}, "limits": {"tflops": "20", "vram": "6Gi"}}
POOL = {"worker": {"image": "w:1", "podTemplate": {"template": {"spec": {"containers": [{"name": "vgpu"}]}}}}}


def render(config: dict[str, Any] | None = None, images: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    pool = msgspec.convert(
        {"nodeManagerConfig": {}, "componentConfig": POOL if config is None else config}, GPUPoolSpec
    )
    revisions = {"NVIDIA": "1"} if images else {}
    template = component_specs("p", pool, revisions, images)["worker"].template
    before = msgspec.json.encode(template)
    metadata = {"name": "w", "namespace": "ns", "uid": "uid-w"}
    workload = msgspec.convert({"metadata": metadata, "spec": {"resources": AMOUNTS} | spec}, TensorFusionWorkload)
    made = worker_pod("w-tf-worker-0", workload, template, pool="p", vendor="NVIDIA", template_hash="abc")
    assert msgspec.json.encode(template) == before, "the template is shared by all"
    return made


def read(made: dict[str, Any]) -> GpuRequest:
    view = view_of(msgspec.convert(made, KubePod))
    found = parse_pod(
        view, tensorfusion_defaults=TensorFusionDefaults(pool="other"), hami_config=HamiConfig(pool="other")
    )
    assert found is not None
    return found


def test_a_worker_says_whose_it_is_and_what_it_was_made_from() -> None:
    made = render(replicas=1)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("w-tf-worker-0", "ns")
    assert made["metadata"]["labels"] == {
        "tensor-fusion.ai/enabled": "true",
        "tensor-fusion.ai/component": "worker",
        "tensor-fusion.ai/workload": "w",
        "tensor-fusion.ai/gpupool": "p",
        "tensor-fusion.ai/pod-template-hash": "abc",
    }
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "tensor-fusion.ai/v1", "kind": "TensorFusionWorkload", "name": "w", "uid": "uid-w",
            "controller": True,
        }
    ]  # fmt: skip
    (container,) = made["spec"]["containers"]
    assert (container["name"], container["image"]) == ("vgpu", "w:1")
    assert {"name": "HYPERVISOR_PORT", "value": "8000"} in container["env"]
    assert (made["spec"]["schedulerName"], made["spec"]["restartPolicy"]) == ("tensor-fusion-scheduler", "Always")


def test_its_request_is_what_the_workload_asks_for_one_worker() -> None:
    asked = {"gpuCount": 2, "gpuModel": "A100", "qos": "high", "isolation": "hard", "vendor": "NVIDIA"}
    request = read(render(replicas=3, **asked))
    assert (request.pool, request.count, request.qos, request.isolation) == ("p", 2, "high", "hard")
    assert (request.tflops_milli, request.vram_bytes, request.vram_limit_bytes) == (10_000, 4 << 30, 6 << 30)
    assert request.container_names == ("vgpu",)
    assert not request.remote


def test_a_gang_of_all_waits_for_as_many_as_there_are_and_one_alone_for_nobody() -> None:
    gang = {"gangScheduling": {"minMembers": 0, "timeout": "5m"}}
    found = read(render(replicas=3, **gang)).gang
    assert found is not None
    assert (found.min_members, found.timeout_s) == (3, 300)
    assert read(render(replicas=1, **gang)).gang is None


def test_the_provider_s_image_counts_more_than_the_pool_s_and_the_workload_s_most() -> None:
    images = {"NVIDIA/remoteWorker": "provider:1", "AMD/remoteWorker": "other:1"}
    assert render(images=images)["spec"]["containers"][0]["image"] == "provider:1"
    assert render({}, images)["spec"]["containers"][0]["image"] == "provider:1"
    own = {"spec": {"containers": [{"image": "own:1"}]}}
    assert render(images=images, workerPodTemplate=own)["spec"]["containers"][0]["image"] == "own:1"
    with pytest.raises(RequestError, match=r"worker image.*named by nobody.*componentConfig.worker.image of pool p"):
        render({"worker": {}})


def test_a_workload_s_own_template_is_merged_with_the_pool_s() -> None:
    spec = {
        "containers": [{"env": [{"name": "A", "value": "1"}]}, {"name": "log", "image": "log:1"}],
        "schedulerName": "somebody-else",
        "tolerations": [{"operator": "Exists"}],
    }
    template = {"metadata": {"labels": {"team": "x", "tensor-fusion.ai/gpupool": "q"}, "name": "no"}, "spec": spec}
    made = render(workerPodTemplate={"template": template}, nodeAffinity={"required": "x"})
    first, second = made["spec"]["containers"]
    assert (first["name"], first["image"], second) == ("vgpu", "w:1", {"name": "log", "image": "log:1"})
    assert {one["name"] for one in first["env"]} == {"A", "HYPERVISOR_PORT"}
    assert made["spec"]["schedulerName"] == "tensor-fusion-scheduler"
    assert made["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert made["spec"]["affinity"] == {"nodeAffinity": {"required": "x"}}
    assert (made["metadata"]["labels"]["team"], made["metadata"]["labels"]["tensor-fusion.ai/gpupool"]) == ("x", "p")
    assert made["metadata"]["name"] == "w-tf-worker-0"
