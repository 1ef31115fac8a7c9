"""Pods that use GPUs of other nodes: what admission puts into them, and what it says their workers are to be."""

from typing import Any

import msgspec
import pytest

from consumers.mutator.client import Client
from consumers.mutator.context import Context
from consumers.mutator.mutate import Mutation, mutate
from consumers.mutator.options import Images, Options
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults, WorkloadProfile
from schemas.kube.base import LabelSelector
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.makers import Made
from schemas.remote import WORKLOAD_SPEC, Owner
from tests.unit.mutator.test_mutate import apply, env

KEY = "tensor-fusion.ai/"
ASKS = {
    f"{KEY}tflops-request": "10",
    f"{KEY}tflops-limit": "20",
    f"{KEY}vram-request": "1Gi",
    f"{KEY}is-local-gpu": "false",
}
ENDPOINT = "https://gpubus-webhook.gpubus-system.svc"
CLIENT = Client(hash="abc", images=Images(client="client:1"), endpoint=ENDPOINT)


def pod(more: dict[str, str] | None = None, *, native: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    resources = {"resources": {"limits": native, "requests": native}} if native else {}
    return {
        "metadata": {
            "labels": {f"{KEY}enabled": "true"},
            "annotations": ASKS | (more or {}),
            **(meta or {"name": "app"}),
        },
        "spec": {"containers": [{"name": "main", "image": "i", **resources}]},
    }


def admitted(
    target: dict[str, Any], client: Client = CLIENT, *, makers: Any = None, **more: Any
) -> tuple[dict[str, Any], Mutation]:
    context = Context(
        pools=frozenset({"shared"}),
        hami=HamiConfig(pool="shared"),
        **{
            "defaults": lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
            "clients": lambda _pool, _vendor: client,
        }
        | more,
    )
    found = mutate(msgspec.json.encode(target), "ml", "0123456789-uid", context, makers)
    changed = apply(target, found.patch)
    again = mutate(msgspec.json.encode(changed), "ml", "another-uid", context, makers)
    assert again.patch == (), "a pod that comes again is changed into the same"
    return changed, found


def spec_of(changed: dict[str, Any]) -> dict[str, Any]:
    return dict(msgspec.json.decode(changed["metadata"]["annotations"][WORKLOAD_SPEC]))


def test_a_client_gets_the_library_and_the_place_to_ask_for_its_worker_and_no_gpu() -> None:
    changed, found = admitted(pod(native={"nvidia.com/gpu": "1"}))
    assert found.request is not None
    assert found.request.remote
    spec, meta = changed["spec"], changed["metadata"]
    assert "schedulerName" not in spec
    assert "tolerations" not in spec
    (first,) = spec["initContainers"]
    assert (first["name"], first["image"]) == ("inject-lib", "client:1")
    (main,) = spec["containers"]
    assert main["resources"] == {}
    mounted = {one["mountPath"] for one in main["volumeMounts"]}
    assert mounted == {"/tensor-fusion", "/etc/ld.so.preload", "/etc/ld.so.conf.d/zz_tensor-fusion.conf"}
    variables = env(changed)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert variables["TENSOR_FUSION_CONNECTION_NAME"] == "$(POD_NAME)-tf-vgpu"
    assert variables["TENSOR_FUSION_OPERATOR_GET_CONNECTION_URL"] == (
        f"{ENDPOINT}/api/connection?name=$(TENSOR_FUSION_CONNECTION_NAME)&namespace=$(TENSOR_FUSION_CONNECTION_NAMESPACE)"
    )
    names = [one["name"] for one in main["env"]]
    # A variable may refer to those before it alone.
    assert names.index("POD_NAME") < names.index("TENSOR_FUSION_CONNECTION_NAME")
    assert names.index("TENSOR_FUSION_CONNECTION_NAMESPACE") < names.index("TENSOR_FUSION_OPERATOR_GET_CONNECTION_URL")
    assert meta["labels"] == {
        f"{KEY}enabled": "true", f"{KEY}component": "client", f"{KEY}gpupool": "shared", f"{KEY}pod-template-hash": "abc",
    }  # fmt: skip
    assert (meta["annotations"][f"{KEY}is-local-gpu"], meta["annotations"][f"{KEY}selected-workload"]) == (
        "false",
        "app",
    )


def test_a_scheduler_of_ours_is_taken_away_and_a_node_may_be_named() -> None:
    target = pod()
    target["spec"] |= {"schedulerName": "tensor-fusion-scheduler", "nodeName": "n"}
    changed, _ = admitted(target)
    assert "schedulerName" not in changed["spec"]


def test_what_the_pool_puts_into_pods_is_merged() -> None:
    patch = {
        "metadata": {"annotations": {"a": "1"}, "name": "no"},
        "spec": {"hostNetwork": True, "containers": [{"name": "main", "env": [{"name": "B", "value": "2"}]}]},
    }
    client = msgspec.structs.replace(CLIENT, pod_patch=patch, patch={"name": "x", "imagePullPolicy": "Always"})
    changed, _ = admitted(pod(), client)
    (main,) = changed["spec"]["containers"]
    assert (changed["metadata"]["name"], changed["metadata"]["annotations"]["a"]) == ("app", "1")
    assert (changed["spec"]["hostNetwork"], main["imagePullPolicy"], env(changed)["B"]) == (True, "Always", "2")
    assert env(changed)["TF_PREPEND_PATH"] == "/tensor-fusion"


def owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "o", "controller": True}
    return {"generateName": f"{name}-", "ownerReferences": [owner], "labels": {f"{KEY}enabled": "true", **labels}}


NAMES = {
    "a bare pod's": ({"name": "app"}, "app"),
    "a bare pod's without a name": ({"generateName": "app-"}, "app-01234567"),
    "a Deployment's": (owned("ReplicaSet", "web-7f", **{"pod-template-hash": "7f"}), "web"),
    "a ReplicaSet's of its own": (owned("ReplicaSet", "web-7f"), "web-7f"),
    "a Job's": (owned("Job", "train"), "train"),
}


@pytest.mark.parametrize(("meta", "name"), NAMES.values(), ids=NAMES)
def test_pods_of_one_controller_share_a_workload(meta: dict[str, Any], name: str) -> None:
    target = pod()
    target["metadata"] = {"labels": {f"{KEY}enabled": "true"}, "annotations": ASKS, **meta}
    changed, _ = admitted(target)
    assert changed["metadata"]["annotations"][f"{KEY}selected-workload"] == name


def asked(target: dict[str, Any], made: Made | None, **more: Any) -> tuple[str, Mutation]:
    """Return the workload that a pod calls for, given what is known of its controller, and the whole answer."""
    changed, found = admitted(target, makers=lambda *_: made, **more)
    return changed["metadata"]["annotations"].get(f"{KEY}selected-workload", ""), found


def controlled(kind: str, name: str, **labels: str) -> dict[str, Any]:
    target = pod()
    target["metadata"] = {"annotations": ASKS, **owned(kind, name, **labels)}
    return target


def test_a_controller_counts_as_what_the_api_server_says_of_it_and_a_pod_without_one_as_its_own() -> None:
    target = controlled("ReplicaSet", "web-7f", **{"pod-template-hash": "7f"})
    name, found = asked(target, None)
    assert (name, found.patch, found.controller) == (
        "",
        (),
        Owner(api_version="apps/v1", kind="ReplicaSet", name="web-7f", uid="o"),
    )
    above = Owner(api_version="apps/v1", kind="Deployment", name="web", uid="d")
    selector = LabelSelector(match_labels={"pod-template-hash": "7f"})
    assert asked(target, Made(top=above, selector=selector))[0] == "web"
    for forged in (
        Made(problem="there is no ReplicaSet web-7f"),
        Made(top=above, selector=LabelSelector(match_labels={"a": "b"})),
    ):
        name, found = asked(target, forged)
        assert name == "web-7f-01234567", "it joins nobody's workload"
        assert len(found.warnings) == 1
        counted = controlled("ReplicaSet", "web-7f")
        counted["metadata"]["annotations"] = ASKS | {f"{KEY}enabled-replicas": "3"}
        with pytest.raises(RequestError, match="counts pods of one controller, and "):
            asked(counted, forged)
    cron = Owner(api_version="batch/v1", kind="CronJob", name="nightly", uid="c")
    assert asked(controlled("Job", "nightly-123"), Made(top=cron))[0] == "nightly"


def test_a_pod_that_calls_for_a_workload_of_others_is_refused() -> None:
    def known(maker: str) -> Any:
        annotations = {"tensor-fusion.ai/workload-maker": maker} if maker else {}
        item = msgspec.convert(
            {"metadata": {"name": "app", "annotations": annotations}, "spec": {}}, TensorFusionWorkload
        )
        return lambda *_: item

    top = Owner(api_version="apps/v1", kind="StatefulSet", name="app", uid="o")
    assert asked(controlled("StatefulSet", "app"), Made(top=top), workload=known("StatefulSet/app"))[0] == "app"
    assert asked(pod(), None, workload=known("Pod/app"))[0] == "app"
    for maker, said in (("Deployment/app", "is called for by Deployment app"), ("", "was written by hand")):
        for target, made in ((pod(), None), (controlled("StatefulSet", "app"), Made(top=top))):
            with pytest.raises(RequestError, match=f"TensorFusionWorkload: 'app' {said}.*another name"):
                asked(target, made, workload=known(maker))
    generated = pod()
    generated["metadata"] = {"generateName": "app-", "labels": {f"{KEY}enabled": "true"}, "annotations": ASKS}
    with pytest.raises(RequestError, match="its workers are not this pod's"):
        asked(generated, None, workload=known("Pod/app"))
    chosen = generated["metadata"]["annotations"] | {f"{KEY}selected-workload": "app-of-others"}
    generated["metadata"]["annotations"] = chosen
    assert asked(generated, None)[0] == "app-01234567", "no name can be chosen"


def test_the_workload_is_what_the_profile_says_and_the_pod_above_that() -> None:
    profile = msgspec.convert(
        {
            "replicas": 2, "qos": "low", "isolation": "hard", "sidecarWorker": False, "nodeAffinity": {"x": 1},
            "resources": {"requests": {"tflops": "5", "vram": "2Gi"}}, "gpuModel": "A100",
        },
        WorkloadProfileSpec,
    )  # fmt: skip
    read = TensorFusionDefaults(pool="shared", profile=WorkloadProfile(isolation="hard", model="A100", replicas=2))
    target = pod(
        {
            f"{KEY}workload-profile": "p", f"{KEY}qos": "high", f"{KEY}gpu-count": "2", f"{KEY}autoscale": "true",
            f"{KEY}worker-pod-template": "spec: {priorityClassName: x}",
        }
    )  # fmt: skip
    changed, found = admitted(target, defaults=lambda *_: read, profiles=lambda *_: profile)
    assert found.request is not None
    assert spec_of(changed) == {
        "replicas": 2,
        "poolName": "shared",
        "isLocalGPU": False,
        "qos": "high",
        "isolation": "hard",
        "gpuCount": 2,
        "gpuModel": "A100",
        "nodeAffinity": {"x": 1},
        "resources": {"requests": {"tflops": "10", "vram": "1Gi"}, "limits": {"tflops": "20"}},
        "workerPodTemplate": {"spec": {"priorityClassName": "x"}},
        "autoScalingConfig": {"autoSetResources": {"enable": True, "targetResource": "all"}},
    }


def test_whole_gpus_are_asked_for_in_the_one_word_that_a_workload_has_for_them() -> None:
    target = pod(native={"nvidia.com/gpu": "2"})
    target["metadata"]["annotations"] = {f"{KEY}is-local-gpu": "false"}
    changed, _ = admitted(target)
    said = spec_of(changed)
    assert (said["isolation"], said["gpuCount"], said["vendor"], "resources" in said) == ("shared", 2, "NVIDIA", False)
    share = pod({f"{KEY}compute-percent-request": "30", f"{KEY}tflops-request": "", f"{KEY}tflops-limit": ""})
    assert spec_of(admitted(share)[0])["resources"]["requests"] == {"compute": "30", "vram": "1Gi"}


REFUSED = {
    "nobody's image": (pod(), Client(hash="", images=Images(), endpoint=ENDPOINT), "no image for it is known"),
    "nowhere to ask": (pod(), Client(hash="", images=Images(client="c")), "nothing says where"),
    "a name without room for the connection's": (pod(name="a" * 250), CLIENT, "leaves no room"),
    "a workload that is no label": (pod(name="a" * 64), CLIENT, "is over 63 characters"),
    "a template that is none": (pod({f"{KEY}worker-pod-template": "[1]"}), CLIENT, "is no pod template"),
    "an alias": (pod({f"{KEY}worker-pod-template": "{a: &a 1, b: *a}"}), CLIENT, "is a YAML alias"),
    "a template that is long": (pod({f"{KEY}worker-pod-template": "#" * 40_000}), CLIENT, "is over 8192 characters"),
}


@pytest.mark.parametrize(("target", "client", "message"), REFUSED.values(), ids=REFUSED)
def test_what_could_not_reach_a_worker_is_refused(target: dict[str, Any], client: Client, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        admitted(target, client)


def test_the_operators_endpoint_stands_in_for_the_pool_s_and_no_token_is_warned_of() -> None:
    target = pod()
    target["spec"]["automountServiceAccountToken"] = False
    client = msgspec.structs.replace(CLIENT, endpoint="")
    changed, found = admitted(target, client, options=Options(operator_endpoint="https://other:1/"))
    url = env(changed)["TENSOR_FUSION_OPERATOR_GET_CONNECTION_URL"]
    assert url.startswith("https://other:1/api/connection?")
    assert len(found.warnings) == 1
    assert "has none" in found.warnings[0]
