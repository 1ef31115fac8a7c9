"""TensorFusion's pod webhook branch by branch, in the order in which it decides; where we differ, the row says so.

Source: TensorFusion 2.17, ``internal/webhook/v1/pod_webhook.go`` and ``tf_parser.go``. What annotations mean is held in
``tests/unit/dialects/test_tensorfusion.py``, autoMigration in ``test_migration.py``: here one row for each branch.
"""

import msgspec
import pytest

from consumers.mutator.client import Client
from consumers.mutator.mutate import Context, mutate
from consumers.mutator.options import Images, Options, read_options
from schemas.dialects import GpuAmounts, GpuResources, HamiConfig, RequestError, TensorFusionDefaults, WorkloadProfile
from schemas.dialects.moved import MOVED
from tests.unit.mutator.test_mutate import apply, env

KEY = "tensor-fusion.ai/"
ON = {f"{KEY}enabled": "true"}
ASKS = {"tflops-request": "10", "vram-request": "1Gi"}
IMAGES = Images(limiter="limiter:1", client="client:1", worker="worker:1")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7f", "uid": "o", "controller": True}
GIB = 2**30
SOME = GpuAmounts(tflops_milli=5_000, vram_bytes=GIB)
QUOTA = TensorFusionDefaults(pool="shared", quota=GpuResources(requests=SOME, limits=SOME))
POOL = TensorFusionDefaults(pool="shared")


def pod(annotations=ASKS, *, labels=ON, containers=("main",), owner=OWNER, native=None, spec=None):
    made = [{"name": name, "image": "i"} for name in containers]
    for name, amounts in (native or {}).items():
        next(one for one in made if one["name"] == name)["resources"] = {
            "requests": dict(amounts), "limits": dict(amounts)
        }  # fmt: skip
    return {
        "metadata": {
            "generateName": "web-",
            "labels": dict(labels),
            "annotations": {f"{KEY}{key}": value for key, value in annotations.items()},
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {"containers": made, **(spec or {})},
    }


def admitted(target, defaults=POOL, **options):
    settings = {"options": Options(), "images": {"NVIDIA": IMAGES}, **options}
    context = Context(
        pools=frozenset({"shared", "other"}),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: defaults,
        namespaces=lambda _name: {},
        **settings,
    )
    found = mutate(msgspec.json.encode(target), "ml", "uid-1", context)
    return apply(target, found.patch), found


def words(changed):
    return {key.removeprefix(KEY): value for key, value in changed["metadata"]["annotations"].items() if KEY in key}


LEFT = {
    "2a no GPU": pod({}, labels={}),
    "2a a limit of 0": pod({}, labels={}, native={"main": {"nvidia.com/gpu": "0"}}),
    "2 opted out by its label, whatever else is broken": pod({"vram-request": "?"}, labels={f"{KEY}enabled": "false"}),
    "4 enabled-replicas of 0, whatever else is broken": pod({"enabled-replicas": "0", "vram-request": "?"}),
}


@pytest.mark.parametrize("target", LEFT.values(), ids=LEFT)
def test_left_as_it_is(target):
    changed, found = admitted(target, options=read_options("autoMigration: {enable: true}"))
    assert (changed, found.request, found.slot) == (target, None, None)


REFUSED = {
    "1 no pod": ({"metadata": {}, "spec": []}, {}, "is no pod"),
    "3 enabled-replicas that is no number": (pod(ASKS | {"enabled-replicas": "two"}), {}, "enabled-replicas: 'two'"),
    "3 a profile that is not there": (pod({"workload-profile": "p"}), {}, "names no WorkloadProfile"),
    "3 no pool and no default": (pod(), {"defaults": TensorFusionDefaults()}, "names no pool and there is no default"),
    "3 a pool that is not there": (pod(ASKS | {"gpupool": "gone"}), {}, "gpupool: 'gone' names no pool"),
    "3 a worker's template of a local pod": (pod(ASKS | {"worker-pod-template": "{}"}), {}, "is for a worker pod"),
    "3 gpu-count of 0": (pod(ASKS | {"gpu-count": "0"}), {}, "from 1 to 128"),
    "3 gpu-count of 129": (pod(ASKS | {"gpu-count": "129"}), {}, "from 1 to 128"),
    "3 native limits above 128": (pod({}, native={"main": {"nvidia.com/gpu": "129"}}), {}, "from 0 to 128"),
    "3 TFLOPS and percent at once (upstream drops one)": (
        pod(ASKS | {"compute-percent-request": "10"}), {}, "a second time"
    ),
    "3 an amount that is none (upstream: not stated)": (pod(ASKS | {"vram-request": "1Gx"}), {}, "'1Gx' is not a size"),
    "3 several containers and none named": (pod(containers=("a", "b")), {}, "is needed for a pod of 2 containers"),
    "7 a container that is not there (upstream: admitted without GPU)": (
        pod(ASKS | {"inject-container": "b"}), {}, "names no container 'b'"
    ),
    "3 soft for a vendor without a soft limiter": (pod(ASKS | {"vendor": "AMD"}), {}, "has no limiter for AMD"),
    "3 isolation that is none": (pod(ASKS | {"isolation": "softish"}), {}, "softish"),
    "3 hard without images": (pod(ASKS | {"isolation": "hard"}), {"images": {}}, "no image for it is known"),
    "3 dedicated without a model": (pod(ASKS | {"dedicated-gpu": "true"}), {}, "needs a GPU model"),
    "3 dedicated of an unknown model": (
        pod(ASKS | {"dedicated-gpu": "true", "gpu-model": "Z9"}),
        {"defaults": msgspec.structs.replace(POOL, models=(("A100",),))}, "is not a known word",
    ),
    "3 a gang of one": (pod(ASKS | {"gang-enabled": "true", "gang-min-members": "1"}), {}, "from 2"),
    "3 a gang larger than there are pods": (
        pod(ASKS | {"gang-enabled": "true", "gang-min-members": "4", "enabled-replicas": "3"}), {}, "more than the 3 members"
    ),
    "3 a gang of unknown size": (pod(ASKS | {"gang-enabled": "true"}), {}, "workload of unknown size"),
    "3 autoscale that is no switch": (pod(ASKS | {"autoscale": "maybe"}), {}, "neither true nor false"),
    "4 enabled-replicas without a controller (upstream: 500)": (
        pod(ASKS | {"enabled-replicas": "3"}, owner=None), {}, "this pod has none"
    ),
    "7 nothing is asked for": (pod({}), {}, "states no amount"),
    "a node of its own choice": (pod(spec={"nodeName": "n"}), {}, "past the scheduler"),
}  # fmt: skip


@pytest.mark.parametrize(("target", "settings", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_with_field_value_and_fix(target, settings, says):
    with pytest.raises(RequestError, match=says.replace("?", r"\?")) as refused:
        admitted(target, **settings)
    assert refused.value.field
    assert refused.value.fix


PROFILE = WorkloadProfile(pool="other", isolation="hard", resources=GpuResources(requests=SOME), qos="critical")

READ = {
    "2b a native pod that is moved": (
        pod({}, labels={}, native={"main": {"nvidia.com/gpu": "2"}}),
        {"options": read_options("autoMigration: {enable: true}")},
        {"count": 2, "isolation": "shared", "dedicated": True, "pool": "shared"},
    ),
    "3 the default pool": (pod(), {}, {"pool": "shared", "count": 1, "isolation": "soft", "remote": False}),
    "3 the pool that is named": (pod(ASKS | {"gpupool": "other"}), {}, {"pool": "other"}),
    "3 a profile": (
        pod({"workload-profile": "p"}),
        {"defaults": msgspec.structs.replace(POOL, profile=PROFILE)},
        {"pool": "other", "isolation": "hard", "tflops_milli": 5_000, "qos": "critical"},
    ),
    "3 an annotation before the profile": (
        pod({"workload-profile": "p", "isolation": "soft", "tflops-request": "7"}),
        {"defaults": msgspec.structs.replace(POOL, profile=PROFILE)},
        {"isolation": "soft", "tflops_milli": 7_000, "vram_bytes": GIB},
    ),
    "3 a sidecar worker makes it local": (
        pod(ASKS | {"sidecar-worker": "true"}), {"defaults": msgspec.structs.replace(POOL, local=False)}, {"remote": False}
    ),
    "3 the namespace's defaults fill what is not stated": (
        pod({}), {"defaults": QUOTA}, {"tflops_milli": 5_000, "vram_bytes": GIB, "vram_limit_bytes": GIB}
    ),
    "3 native limits of all containers are counted": (
        pod({}, containers=("a", "b", "c"), native={"a": {"nvidia.com/gpu": "1"}, "c": {"nvidia.com/gpu": "2"}}),
        {},
        {"count": 3, "container_names": ("a", "c"), "container_counts": (1, 2), "vendor": "NVIDIA", "compute_limit_milli": 1000},
    ),
    "3 the native resource says the vendor": (
        pod({"isolation": "shared"}, native={"main": {"amd.com/gpu": "1"}}), {}, {"vendor": "AMD", "count": 1}
    ),
    "3 a request that is missing is the limit": (
        pod({"tflops-limit": "8", "vram-limit": "2Gi"}), {}, {"tflops_milli": 8_000, "vram_bytes": 2 * GIB}
    ),
    "3 indices say how many": (pod(ASKS | {"gpu-indices": "0,2"}), {}, {"count": 2, "gpu_indices": (0, 2)}),
    "3 percent": (pod({"compute-percent-request": "25", "vram-request": "1Gi"}), {}, {"compute_milli": 250}),
    "3 dedicated": (
        pod({"dedicated-gpu": "true", "gpu-model": "A100"}), {}, {"dedicated": True, "compute_milli": 1000, "vram_milli": 1000}
    ),
    "3 partitioned": (
        pod({"isolation": "partitioned", "partition-id": "1g.10gb"}),
        {},
        {"partition_template": "1g.10gb", "isolation": "partitioned"},
    ),
    "5 QoS that is stated": (pod(ASKS | {"qos": "critical"}), {}, {"qos": "critical"}),
    "5 QoS of equal limits": (
        pod({"tflops-request": "1", "tflops-limit": "1", "vram-request": "1Gi", "vram-limit": "1Gi"}), {}, {"qos": "high"}
    ),
    "5 QoS of the pool": (pod(), {"defaults": msgspec.structs.replace(POOL, qos="low")}, {"qos": "low"}),
    "5 QoS of nobody": (pod(), {}, {"qos": "medium"}),
}  # fmt: skip


@pytest.mark.parametrize(("target", "settings", "expected"), READ.values(), ids=READ)
def test_read_as(target, settings, expected):
    changed, found = admitted(target, **settings)
    assert {name: getattr(found.request, name) for name in expected} == expected
    # 7 and 8: whatever is read, the pod says it in its own words.
    assert changed["spec"]["schedulerName"] == "tensor-fusion-scheduler"
    said = words(changed)
    request = found.request
    assert (said["gpupool"], said["qos"], said["isolation"]) == (request.pool, request.qos, request.isolation)
    assert (said["is-local-gpu"], said["inject-container"]) == ("true", ",".join(request.container_names))
    labels = changed["metadata"]["labels"]
    assert (labels[f"{KEY}component"], labels[f"{KEY}workload"]) == ("worker", "web-7f")
    assert {"key": f"{KEY}used-by", "operator": "Equal", "value": "tensor-fusion", "effect": "PreferNoSchedule"} in (
        changed["spec"]["tolerations"]
    )


@pytest.mark.parametrize(
    ("qos", "given", "written"),
    [
        ("critical", None, "tensor-fusion-critical"),
        ("high", None, "tensor-fusion-high"),
        ("medium", None, None),
        ("low", None, None),
        ("critical", "mine", "mine"),
    ],
)
def test_8_priority_classes(qos, given, written):
    spec = {"priorityClassName": given, "priority": 5} if given else {"priority": 0}
    changed, _ = admitted(pod(ASKS | {"qos": qos}, spec=spec))
    assert changed["spec"].get("priorityClassName") == written
    assert ("priority" in changed["spec"]) == (written not in ("tensor-fusion-critical", "tensor-fusion-high"))


def test_8_native_limits_are_taken_out_of_containers_and_kept_beside():
    changed, _ = admitted(pod({}, native={"main": {"nvidia.com/gpu": "1", "cpu": "2"}}))
    assert changed["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert msgspec.json.decode(changed["metadata"]["annotations"][MOVED]) == {"main": {"nvidia.com/gpu": "1"}}


def test_4_a_slot_is_asked_for_and_the_namespace_of_the_request_counts():
    _, found = admitted(pod(ASKS | {"enabled-replicas": "3"}))
    assert (found.slot.owner, found.slot.limit) == ("ml/ReplicaSet/web-7f/o", 3)


INJECTED = {
    "shared": ([], ["main"], set()),
    "partitioned": ([], ["main"], set()),
    "soft": (
        ["init-soft-limiter"], ["main"],
        {"LD_PRELOAD", "TF_ISOLATION_MODE", "TF_SHM_PATH", "POD_NAME", "POD_NAMESPACE", "HYPERVISOR_IP"},
    ),
    "hard": (
        ["inject-lib"], ["main", "tensorfusion-worker"],
        {"TENSOR_FUSION_OPERATOR_CONNECTION_INFO", "TF_USE_IVSHMEM", "TF_PREPEND_PATH", "TF_LD_LIBRARY_PATH"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("isolation", INJECTED)
def test_what_is_injected(isolation):
    inits, containers, variables = INJECTED[isolation]
    changed, _ = admitted(pod(ASKS | {"isolation": isolation}))
    spec = changed["spec"]
    assert [one["name"] for one in spec.get("initContainers", ())] == inits
    assert [one["name"] for one in spec["containers"]] == containers
    assert variables <= set(env(changed))
    if not variables:
        assert set(env(changed)) == {"NVIDIA_VISIBLE_DEVICES", "CONTAINER_NAME"}
        assert "volumes" not in spec


def test_11_the_pools_patch_is_merged_into_containers_with_gpus_only():
    client = Client(hash="h", images=IMAGES, patch={"env": [{"name": "A", "value": "pool"}]})
    changed, _ = admitted(
        pod(ASKS | {"inject-container": "b"}, containers=("a", "b")), clients=lambda _pool, _vendor: client
    )
    assert env(changed, "b")["A"] == "pool"
    assert "A" not in env(changed, "a")
    assert changed["metadata"]["labels"][f"{KEY}pod-template-hash"] == "h"


def test_11_what_the_pool_puts_into_pods_is_for_those_that_use_gpus_of_other_nodes():
    client = Client(hash="h", images=IMAGES, pod_patch={"spec": {"hostNetwork": True}})
    changed, _ = admitted(pod(), clients=lambda _pool, _vendor: client)
    assert "hostNetwork" not in changed["spec"]


def test_9_no_index_of_a_device_plugin_is_asked_for():
    assert "index_" not in str(admitted(pod(native={"main": {"nvidia.com/gpu": "1"}}))[0])


@pytest.mark.parametrize(
    ("isolation", "written", "told"),
    [("soft", "true", True), ("shared", "true", True), ("hard", "true", False), ("soft", "false", False)],
)
def test_3_a_worker_beside_the_container_comes_with_hard_isolation_and_others_are_told_so(isolation, written, told):
    changed, found = admitted(pod(ASKS | {"isolation": isolation, "sidecar-worker": written}))
    assert ("tensorfusion-worker" in {one["name"] for one in changed["spec"]["containers"]}) == (isolation == "hard")
    assert [warning.startswith(f"{KEY}sidecar-worker: ") for warning in found.warnings] == [True] * told


def test_10_a_port_of_a_node_is_asked_for_and_held_in_test_ports():
    target = pod(labels=ON | {f"{KEY}host-port": "auto", f"{KEY}port-name": "http"})
    target["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "name": "http"}]
    assert admitted(target)[1].port is not None
    assert admitted(pod())[1].port is None
