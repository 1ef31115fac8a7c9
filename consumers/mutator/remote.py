"""A pod that uses GPUs of other nodes: the library that hands its GPU calls to a worker, and where that asks for it. Pure.

Source: TensorFusion 2.17, ``internal/utils/compose.go``: names of volumes, paths and variables are what its images expect. The
connection's name is the pod's and a suffix rather than a random one, so that a pod which comes twice is changed into the same.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from consumers.mutator import environment
from consumers.mutator.client import Client
from consumers.mutator.environment import Variable, field, literal
from consumers.mutator.isolation import first, mount, volume
from consumers.mutator.workers import check_free, workload_name, workload_spec
from schemas.dialects import PodSpecView, RequestError
from schemas.dialects import tf_keys as keys
from schemas.kube.merge import merge
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.scheduler import SCHEDULERS
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.makers import Made
from schemas.pod import GpuRequest
from schemas.remote import LONGEST_POD_NAME, WORKLOAD_SPEC, connection_name

LIBRARY: Final = "/tensor-fusion"
CONNECTION_PATH: Final = "/api/connection"

_CONFIGURATION: Final = "/tensor-fusion-conf"
_LOADER: Final = {
    "/etc/ld.so.preload": "ld.so.preload",
    "/etc/ld.so.conf.d/zz_tensor-fusion.conf": "zz_tensor-fusion.conf",
}
"""What the dynamic loader reads, and the files of the client's image that stand there."""

_SMALL: Final = {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"cpu": "20m", "memory": "256Mi"}}
_TOKENLESS: Final = (
    "automountServiceAccountToken is false: the client asks for its worker with the pod's token, and has none"
)


def make_client(
    pod: dict[str, Any],
    view: PodSpecView,
    request: GpuRequest,
    client: Client,
    *,
    profile: WorkloadProfileSpec | None,
    admission: str,
    made: Made | None = None,
    workload: Callable[[str, str], TensorFusionWorkload | None] = lambda _namespace, _name: None,
) -> tuple[list[Variable], list[str]]:
    """Change a pod, in place, into one that uses GPUs of other nodes.

    Args:
        pod: The pod as JSON, without native GPU limits.
        view: The pod as it was written.
        request: What it asks for.
        client: What its pool puts into it, and where it asks for its worker.
        profile: The profile that it names.
        admission: UID of the admission request.
        made: What is known of its controller; None if it has none.
        workload: For a namespace and a name, the workload that there is.

    Returns:
        Variables of every container with GPUs, and what the pod's user should know.

    Raises:
        RequestError: Something is missing without which it could not reach a worker.
    """
    meta = pod["metadata"]
    if len(meta.get("name") or "") > LONGEST_POD_NAME:
        fix = "give it a shorter one"
        raise RequestError("metadata.name", meta["name"], "leaves no room for the name of its connection", fix)
    if not client.images.client:
        fix = "set images.remoteClient of the vendor's ProviderConfig, or componentConfig.client.remoteModeImage of the pool"
        raise RequestError(
            keys.LOCAL, "false", "needs a client beside the container, and no image for it is known", fix
        )
    if not client.endpoint:
        fix = "set componentConfig.client.operatorEndpoint of the pool, or operatorEndpoint of the admission's configuration"
        raise RequestError(
            keys.LOCAL, "false", "needs to know where to ask for its worker, and nothing says where", fix
        )
    name, maker = workload_name(meta, admission, made)
    check_free(name, maker, workload(view.namespace, name))
    spec = workload_spec(view, request, profile)
    if client.pod_patch:
        _patch(pod, client.pod_patch)
    _inject(pod["spec"], client.images.client)
    if pod["spec"].get("schedulerName") in SCHEDULERS:
        del pod["spec"]["schedulerName"]  # it takes no GPU of its node
    meta["annotations"] = {
        **(meta.get("annotations") or {}),
        keys.SELECTED_WORKLOAD: name,
        WORKLOAD_SPEC: msgspec.json.encode(spec, order="sorted").decode(),
    }
    warnings = [_TOKENLESS] if pod["spec"].get("automountServiceAccountToken") is False else []
    if made is not None and made.problem:
        warnings.append(f"the pod has workers of its own, {name}, and shares none, for {made.problem}")
    return _variables(client.endpoint), warnings


def _patch(pod: dict[str, Any], patch: dict[str, Any]) -> None:
    """Merge what the pool puts into pods: of their metadata it is labels and annotations."""
    stated = patch.get("metadata") or {}
    for part in ("labels", "annotations"):
        if stated.get(part):
            pod["metadata"][part] = {**(pod["metadata"].get(part) or {}), **stated[part]}
    if patch.get("spec"):
        # The parts that are held elsewhere stay the same objects.
        before = pod["spec"]
        merged = merge(before, patch["spec"])
        before.clear()
        before.update(merged)


def mount_library(container: dict[str, Any]) -> None:
    """Have a container load the client's library, whatever it runs."""
    mount(container, {"name": "tf-libs", "mountPath": LIBRARY, "readOnly": True})
    for path, file in _LOADER.items():
        mount(container, {"name": "tf-conf-lib-paths", "mountPath": path, "subPath": file, "readOnly": True})


def _inject(spec: dict[str, Any], image: str) -> None:
    volume(spec, {"name": "tf-libs", "emptyDir": {}})
    volume(spec, {"name": "tf-conf-lib-paths", "emptyDir": {}})
    mounts = [
        {"name": "tf-libs", "mountPath": LIBRARY},
        {"name": "tf-conf-lib-paths", "mountPath": _CONFIGURATION},
    ]
    first(spec, {"name": "inject-lib", "image": image, "resources": _SMALL, "volumeMounts": mounts})


def _variables(endpoint: str) -> list[Variable]:
    name, namespace = "TENSOR_FUSION_CONNECTION_NAME", "TENSOR_FUSION_CONNECTION_NAMESPACE"
    asked = f"{endpoint.rstrip('/')}{CONNECTION_PATH}?name=$({name})&namespace=$({namespace})"
    return [
        literal(environment.NVIDIA_VISIBLE_DEVICES, environment.NO_DEVICES),
        field("POD_NAME", "metadata.name"),
        field(namespace, "metadata.namespace"),
        literal(name, connection_name("$(POD_NAME)")),
        literal("TENSOR_FUSION_OPERATOR_GET_CONNECTION_URL", asked),
        literal("TF_PREPEND_PATH", LIBRARY),
        literal("TF_LD_LIBRARY_PATH", LIBRARY),
    ]
