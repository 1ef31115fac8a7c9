"""What becomes of pods at admission: both dialects, refusals, and that a second pass changes nothing."""

import copy
import re
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.allocator.engine import Policy, Snapshot
from consumers.allocator.engine import decide as place
from consumers.allocator.grants import allocation
from consumers.mutator.client import Client
from consumers.mutator.mutate import SLOT_LABEL, Context, NotYetError, mutate, with_slot
from consumers.mutator.options import Images, Options
from consumers.mutator.patch import diff
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults, WorkloadProfile
from schemas.dialects.moved import MOVED
from schemas.kube.annotations import allocation_annotations
from schemas.pod import Schedule

IMAGES = Images(limiter="limiter:1", client="client:1", worker="worker:1")


def context(*, images=(), clients=None, **options) -> Context:
    return Context(
        pools=frozenset({"shared"}),
        options=Options(**options),
        images=dict(images),
        clients=lambda pool, vendor: (clients or {}).get((pool, vendor)),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
    )


def pod(*, labels=None, annotations=None, containers=None, **spec):
    meta = {"generateName": "web-", "namespace": "ml", "labels": labels or {}, "annotations": annotations or {}}
    containers = containers or [{"name": "main", "image": "i"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers, **spec}}


def hami_pod(memory):
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": memory}
    return pod(containers=[{"name": "main", "image": "i", "resources": {"limits": limits}}])


def apply(target, operations):
    """RFC 6902, strictly: what does not exist cannot be replaced or removed."""
    result = copy.deepcopy(target)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation.path.split("/")[1:]]
        where = result
        for part in parents:
            where = where[int(part)] if isinstance(where, list) else where[part]
        key = int(last) if isinstance(where, list) else last
        if operation.op in {"replace", "remove"}:
            assert isinstance(where, list) or key in where
        if operation.op == "remove":
            del where[key]
        else:
            where[key] = operation.value
    return result


PRIVILEGED = {
    "name": "m", "securityContext": {"privileged": True}, "resources": {"limits": {"nvidia.com/gpu": "1"}},
}  # fmt: skip


def decide(target, admission="u", **options):
    return mutate(msgspec.json.encode(target), "ml", admission, context(**options))


def admitted(target, **options):
    found = decide(target, "uid-1", **options)
    changed = apply(target, found.patch)
    again = decide(changed, "uid-2", **options)
    assert again.patch == (), "a second pass changes nothing"
    # What admission adds (a toleration, an init container) is read with the rest the second time.
    beside = {"nodes": None, "cpu_milli": 0, "memory_bytes": 0, "priority": 0}
    first, second = (one.request and msgspec.structs.replace(one.request, **beside) for one in (found, again))
    assert first == second
    return changed, found


def env(changed, container="main", kind="containers"):
    (one,) = (one for one in changed["spec"][kind] if one["name"] == container)
    return {v["name"]: v.get("value", v.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")) for v in one["env"]}


def hami(limits, **spec):
    return pod(containers=[{"name": "main", "image": "i", "resources": {"limits": limits}}], **spec)


# What TensorFusion's guide has users write

GUIDE = {
    "tensor-fusion.ai/tflops-request": "100",
    "tensor-fusion.ai/tflops-limit": "200",
    "tensor-fusion.ai/vram-request": "3Gi",
    "tensor-fusion.ai/vram-limit": "3Gi",
}
ENABLED = {"tensor-fusion.ai/enabled": "true"}


def test_a_tensorfusion_pod():
    changed, found = admitted(pod(labels=ENABLED, annotations=GUIDE))
    assert found.request.tflops_milli == 100_000
    assert found.request.vram_bytes == 3 << 30
    assert changed["spec"]["schedulerName"] == "tensor-fusion-scheduler"
    assert changed["metadata"]["labels"]["tensor-fusion.ai/component"] == "worker"
    assert changed["metadata"]["annotations"]["tensor-fusion.ai/gpupool"] == "shared"
    assert changed["metadata"]["annotations"]["tensor-fusion.ai/qos"] == "medium"
    assert env(changed)["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['gpubus.io/visible-devices']"
    assert "priorityClassName" not in changed["spec"]
    assert found.slot is None


def test_native_limits_are_taken_over():
    resources = {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}, "requests": {"nvidia.com/gpu": "2"}}
    containers = [{"name": "main", "image": "i", "resources": resources}]
    changed, found = admitted(pod(labels=ENABLED, containers=containers))
    assert found.request.count == 2
    assert changed["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}}
    assert msgspec.json.decode(changed["metadata"]["annotations"][MOVED]) == {"main": {"nvidia.com/gpu": "2"}}


def test_equal_requests_and_limits_are_of_high_quality():
    equal = {**GUIDE, "tensor-fusion.ai/tflops-limit": "100"}
    changed, _ = admitted(pod(labels=ENABLED, annotations=equal, priority=0))
    assert changed["spec"]["priorityClassName"] == "tensor-fusion-high"
    assert "priority" not in changed["spec"]
    kept, _ = admitted(pod(labels=ENABLED, annotations=equal, priorityClassName="mine", priority=7))
    assert (kept["spec"]["priorityClassName"], kept["spec"]["priority"]) == ("mine", 7)


def test_soft_isolation_preloads_the_limiter_of_the_provider():
    changed, _ = admitted(pod(labels=ENABLED, annotations=GUIDE), images={"NVIDIA": IMAGES})
    assert [one["image"] for one in changed["spec"]["initContainers"]] == ["limiter:1"]
    assert env(changed)["TF_ISOLATION_MODE"] == "soft"
    assert {"tf-soft-limiter", "tf-data"} == {volume["name"] for volume in changed["spec"]["volumes"]}


def test_hard_isolation_puts_a_worker_beside_the_container():
    written = {**GUIDE, "tensor-fusion.ai/isolation": "hard"}
    changed, _ = admitted(pod(labels=ENABLED, annotations=written), images={"NVIDIA": IMAGES})
    assert [one["name"] for one in changed["spec"]["containers"]] == ["main", "tensorfusion-worker"]
    assert env(changed, "tensorfusion-worker")["TF_GPU_MEMORY_LIMIT"] == str((3 << 30) // 1_000_000)
    assert env(changed, "tensorfusion-worker")["NVIDIA_VISIBLE_DEVICES"].startswith("metadata.annotations")
    assert env(changed)["NVIDIA_VISIBLE_DEVICES"] == "void"
    with pytest.raises(RequestError, match="ProviderConfig"):
        decide(pod(labels=ENABLED, annotations=written))


HASH = "tensor-fusion.ai/pod-template-hash"
WORKER = {
    "apiVersion": "tensor-fusion.ai/v1",
    "kind": "TensorFusionWorkload",
    "name": "w",
    "uid": "u",
    "controller": True,
}


def test_what_the_pool_puts_into_clients_is_there_and_the_pod_says_from_which_template():
    patch = {"name": "no", "env": [{"name": "A", "value": "pool"}], "securityContext": {"privileged": False}}
    client = Client(hash="h1", images=Images(limiter="limiter:2"), patch=patch)
    containers = [{"name": "main", "image": "i", "env": [{"name": "A", "value": "own"}, {"name": "B", "value": "own"}]}]
    changed, _ = admitted(
        pod(labels=ENABLED, annotations=GUIDE, containers=containers),
        images={"NVIDIA": IMAGES},
        clients={("shared", "NVIDIA"): client},
    )
    assert changed["metadata"]["labels"][HASH] == "h1"
    assert [one["image"] for one in changed["spec"]["initContainers"]] == ["limiter:2"]
    (main,) = changed["spec"]["containers"]
    assert (main["name"], main["securityContext"]) == ("main", {"privileged": False})
    assert (env(changed)["A"], env(changed)["B"]) == ("pool", "own")
    unknown, _ = admitted(pod(labels=ENABLED, annotations=GUIDE), clients={("other", "NVIDIA"): client})
    assert HASH not in unknown["metadata"]["labels"]


def test_a_worker_keeps_the_template_that_it_says_and_gets_no_second_worker_beside_it():
    written = {**GUIDE, "tensor-fusion.ai/isolation": "hard"}
    target = pod(labels={**ENABLED, HASH: "worker's"}, annotations=written)
    target["metadata"]["ownerReferences"] = [WORKER]
    changed, _ = admitted(target, clients={("shared", "NVIDIA"): Client(hash="client's", images=Images())})
    assert changed["metadata"]["labels"][HASH] == "worker's"
    assert [one["name"] for one in changed["spec"]["containers"]] == ["main"]
    variables = env(changed)
    assert variables["TF_GPU_MEMORY_LIMIT"] == str((3 << 30) // 1_000_000)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['gpubus.io/visible-devices']"


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [({"tensor-fusion.ai/enabled": "false"}, {"tensor-fusion.ai/vram-request": "??"}), ({"app": "web"}, {})],
)
def test_other_pods_are_left_alone(labels, annotations):
    changed, found = admitted(pod(labels=labels, annotations=annotations))
    assert (found.request, found.patch) == (None, ())
    assert changed["spec"] == {"containers": [{"name": "main", "image": "i"}]}


def test_zero_enabled_replicas_bypass_whatever_else_is_broken():
    written = {"tensor-fusion.ai/enabled-replicas": "0", "tensor-fusion.ai/vram-request": "16Gx"}
    assert decide(pod(labels=ENABLED, annotations=written)).request is None


def test_enabled_replicas_ask_for_a_slot():
    target = pod(labels=ENABLED, annotations={**GUIDE, "tensor-fusion.ai/enabled-replicas": "3"})
    with pytest.raises(RequestError, match="this pod has none"):
        decide(target)
    target["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-7f", "uid": "o1", "controller": True}]
    changed, found = admitted(target)
    assert (found.slot.owner, found.slot.limit, found.slot.id) == ("ml/ReplicaSet/web-7f/o1", 3, "uid-1")
    assert changed["metadata"]["labels"][SLOT_LABEL] == "uid-1"


def test_a_slot_in_a_label_is_the_pods_own_or_gives_way_to_the_one_that_was_granted():
    target = pod(labels={**ENABLED, SLOT_LABEL: "old"}, annotations={**GUIDE, "tensor-fusion.ai/enabled-replicas": "3"})
    target["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-7f", "uid": "o1", "controller": True}]
    found = decide(target)
    assert (found.slot.id, found.slot.before) == ("u", "old")
    for granted in ("old", "u"):
        patch = with_slot(found.patch, found.slot, granted)
        assert apply(target, patch)["metadata"]["labels"][SLOT_LABEL] == granted


def test_a_privileged_container_with_gpus_is_told_that_it_sees_them_all():
    main = {"name": "main", "securityContext": {"privileged": True}}
    (told,) = decide(pod(labels=ENABLED, annotations=GUIDE, containers=[main])).warnings
    assert "container main: privileged" in told
    assert not decide(pod(labels=ENABLED, annotations=GUIDE)).warnings


# What HAMi's webhook does, as far as it concerns pods: TestMutateAdmissionDefaultsExclusiveCore and others


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"nvidia.com/gpu": "1"}, "100"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192"}, None),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, None),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "70"}, "70"),
    ],
)
def test_hami_defaults(limits, cores):
    changed, _ = admitted(hami(limits))
    moved = msgspec.json.decode(changed["metadata"]["annotations"][MOVED])["main"]
    assert moved.get("nvidia.com/gpucores") == cores
    assert "limits" not in changed["spec"]["containers"][0]["resources"]
    assert changed["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (hami({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"}), "from 0 to 100"),
        (hami({"nvidia.com/gpu": "1"}, nodeName="n1"), "spec.nodeName"),
        (hami({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"}), "16384"),
        (hami({"nvidia.com/gpu": "-1"}), "-1"),
        (hami({"nvidia.com/gpu": "1", "nvidia.com/priority": "9"}), "0 \\(high\\) or 1 \\(low\\)"),
        (
            pod(containers=[PRIVILEGED]),
            "privileged",
        ),
        (pod(labels=ENABLED, annotations={**GUIDE, "tensor-fusion.ai/compute-percent-request": "10"}), "compute-percent"),
        (pod(labels=ENABLED, annotations={**GUIDE, "tensor-fusion.ai/isolation": "softish"}), "softish"),
        (pod(labels=ENABLED, annotations={**GUIDE, "tensor-fusion.ai/is-local-gpu": "false"}), "no image for it is known"),
        (pod(labels=ENABLED, annotations=GUIDE, containers=[{"name": "a"}, {"name": "b"}]), "inject-container"),
        ({"metadata": {}, "spec": {"containers": []}}, "spec.containers"),
        ({"metadata": {}, "spec": 3}, "no pod"),
    ],
)  # fmt: skip
def test_refusals_name_field_value_and_fix(target, message):
    with pytest.raises(RequestError, match=message):
        decide(target)


def test_a_pod_of_another_scheduler_is_not_hamis():
    changed, found = admitted(hami({"nvidia.com/gpu": "1"}, schedulerName="other-scheduler"))
    assert (found.request, found.patch) == (None, ())
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_hami_environment():
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4k", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1"}
    changed, _ = admitted(hami(limits), gpu_core_policy="force")
    assert env(changed) == {
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['gpubus.io/visible-devices']",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "metadata.annotations['gpubus.io/vram-limit-0']",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "metadata.annotations['gpubus.io/vram-limit-1']",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_TASK_PRIORITY": "1",
        "GPU_CORE_UTILIZATION_POLICY": "force",
    }


def test_containers_with_gpus_of_their_own_see_only_those():
    containers = [
        {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}},
        {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "200"}}},
        {"name": "c"},
    ]
    changed, _ = admitted(pod(containers=containers))
    assert env(changed, "b")["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['gpubus.io/visible-devices-1']"
    assert env(changed, "b")["CUDA_DEVICE_MEMORY_LIMIT_1"] == "metadata.annotations['gpubus.io/vram-limit-1-1']"
    assert env(changed, "c") == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_user_who_sets_visible_devices_is_told_that_it_counts_for_nothing():
    target = hami({"nvidia.com/gpu": "1"})
    target["spec"]["containers"][0]["env"] = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "A", "value": "b"},
    ]
    changed, found = admitted(target)
    assert env(changed)["NVIDIA_VISIBLE_DEVICES"].startswith("metadata.annotations")
    assert env(changed)["A"] == "b"
    assert found.warnings == (
        "container main: NVIDIA_VISIBLE_DEVICES is set by gpubus from the pod's allocation; the value in the pod is not used",
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"topologySpreadConstraints": [{}]},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    ],
)
def test_what_only_kube_scheduler_knows_goes_to_it(spec):
    changed, _ = admitted(hami({"nvidia.com/gpu": "1"}, **spec), extender_scheduler="gpubus-scheduler")
    assert changed["spec"]["schedulerName"] == "gpubus-scheduler"


def test_a_forged_annotation_of_moved_resources_is_refused():
    with pytest.raises(RequestError, match="not what admission writes"):
        decide(pod(annotations={MOVED: "[1]"}))
    with pytest.raises(RequestError, match="container that the pod has not"):
        decide(pod(annotations={MOVED: '{"x": {"nvidia.com/gpu": "1"}}'}))


json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text("ab/~", max_size=2), json), st.dictionaries(st.text("ab/~", max_size=2), json))
def test_a_patch_turns_one_object_into_the_other(before, after):
    assert apply(before, list(diff(before, after))) == after


def referred(changed):
    """Annotations that variables of the pod come from."""
    containers = changed["spec"]["containers"] + changed["spec"].get("initContainers", [])
    paths = [
        v["valueFrom"]["fieldRef"]["fieldPath"] for one in containers for v in one.get("env", ()) if "valueFrom" in v
    ]
    return {path.split("'")[1] for path in paths if path.startswith("metadata.annotations")}


def placed(request):
    """What the engine and the allocator make of a request on a node with room."""
    device = {"model": "A100", "tflops_milli": 312_000, "vram_bytes": 80 << 30}
    snapshot = Snapshot()
    snapshot.put_pool(Pool(name="shared"))
    snapshot.put_node(Node(name="n", pool="shared", cpu_milli=64_000, memory_bytes=1 << 40))
    gpus = [GpuDevice(uuid=f"GPU-{index}", index=index, **device) for index in range(8)]
    snapshot.put_inventory(GpuInventory(node="n", gpus=gpus, observed_at=datetime(2026, 11, 30, tzinfo=UTC)))
    decision = place(snapshot, request, Policy())
    assert decision.node == "n", decision.message
    return allocation(Schedule(namespace="ml", name="p", uid="u", request=request), decision, snapshot)


@pytest.mark.parametrize(
    "target",
    [
        pod(labels=ENABLED, annotations=GUIDE),
        pod(labels=ENABLED, annotations={**GUIDE, "tensor-fusion.ai/isolation": "hard"}),
        hami({"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "30"}),
        pod(
            containers=[
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}},
                {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "50"}}},
            ]
        ),
        pod(
            labels=ENABLED,
            containers=[
                {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}},
            ],
        ),
    ],
)
def test_a_binding_writes_every_annotation_that_a_variable_comes_from(target):
    changed, found = admitted(target, images={"NVIDIA": IMAGES})
    held = placed(found.request)
    written = allocation_annotations("n", held)
    assert referred(changed) <= written.keys()
    for container in held.containers:
        (key,) = {name for name in referred(changed) if name.startswith("gpubus.io/visible")} & {
            env(changed, container.name)["NVIDIA_VISIBLE_DEVICES"].split("'")[1]
        }
        assert written[key] == ",".join(gpu.uuid for gpu in container.gpus)


def test_a_limit_in_tflops_comes_to_a_share_of_the_gpu():
    _, found = admitted(pod(labels=ENABLED, annotations=GUIDE))
    assert allocation_annotations("n", placed(found.request))["tensor-fusion.ai/effective-hard-sm-percent"] == "65"


def test_pods_that_are_written_alike_are_read_once_and_others_are_not_taken_for_them():
    seen = []

    def defaults(_namespace, _profile, _pool):
        return TensorFusionDefaults(pool="shared")

    settled = Context(hami=HamiConfig(pool="shared"), defaults=defaults, pools=frozenset({"shared"}))
    known = settled.alike.get

    def counted(view, read):
        return known(view, lambda pod: seen.append(pod) or read(pod))

    settled.alike.get = counted
    for number in range(3):
        asked = hami_pod(f"{1000 + number % 2}")
        found = mutate(msgspec.json.encode(asked), "ml", f"u{number}", settled)
        assert found.request.vram_bytes == (1000 + number % 2) << 20
    assert len(seen) == 2
    for _ in range(2):
        with pytest.raises(RequestError):
            mutate(msgspec.json.encode(hami_pod("1Gi")), "ml", "u", settled)
    assert len(seen) == 4, "a refusal is worked out again, for its user may have had something changed"


KNOWN = frozenset({"shared", "training"})
TF = {"tensor-fusion.ai/tflops-request": "10", "tensor-fusion.ai/vram-request": "1Gi"}
POOL, PROFILE = "tensor-fusion.ai/gpupool", "tensor-fusion.ai/workload-profile"


@pytest.mark.parametrize(
    ("asked", "pools", "field", "value", "says"),
    [
        (pod(annotations=TF | {POOL: "trainin"}), KNOWN, POOL, "trainin", "did you mean training? use shared, training"),
        (pod(annotations=TF | {POOL: "x"}), KNOWN, POOL, "x", "names no pool that there is: use shared, training"),
        (hami_pod("1000") | {}, frozenset({"other"}), POOL, "shared", "names no pool that there is: use other"),
        (pod(annotations=TF | {POOL: "x"}), frozenset({f"p{n:02}" for n in range(12)}), POOL, "x", "p09 or one of 2 more"),
        (pod(annotations=TF), frozenset(), POOL, "shared", "no pool is known yet: create a GPUPool"),
        (pod(annotations=TF | {PROFILE: "big"}), KNOWN, PROFILE, "big: gone", "names no pool"),
    ],
)  # fmt: skip
def test_a_pool_that_does_not_exist_is_refused_with_those_that_do(asked, pools, field, value, says):
    profile = WorkloadProfile(pool="gone")
    known = msgspec.structs.replace(
        context(), pools=pools, defaults=lambda *_: TensorFusionDefaults(pool="shared", profile=profile)
    )
    with pytest.raises(RequestError, match=re.escape(says)) as refused:
        mutate(msgspec.json.encode(asked), "ml", "u", known)
    assert (refused.value.field, refused.value.value) == (field, value)
    assert isinstance(refused.value, NotYetError) == (not pools)
