"""What becomes of one pod at admission. Pure: a pod and what operators have set in, a changed pod or a refusal out.

Nothing is reserved for a pod that is only proposed: it has no UID yet, may be invalid, or may be sent twice. A pod that
comes a second time, changed by us already, is changed into the same.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from consumers.mutator import environment
from consumers.mutator.context import Context
from consumers.mutator.environment import Variable, literal
from consumers.mutator.isolation import ADDED
from consumers.mutator.migration import asks, migrated, speaks
from consumers.mutator.moved import move
from consumers.mutator.patch import diff
from consumers.mutator.ports import PORT_LABEL, PortWish, check_stated, port_of, wish_of
from consumers.mutator.progressive import apart
from consumers.mutator.quota import check
from consumers.mutator.tensorfusion import containers, scheduler_of, tensorfusion, tolerate
from consumers.mutator.workers import assumed, checked, controller_of
from schemas.admission import PatchOperation
from schemas.dialects import HamiConfig, PodSpecView, RequestError, parse_pod
from schemas.dialects import tf_keys as keys
from schemas.dialects.moved import with_moved
from schemas.dialects.text import closest
from schemas.dialects.view import POOL_KEY, ContainerView
from schemas.kube.core import KubePod
from schemas.kube.views import view_of
from schemas.makers import Made
from schemas.pod import WHOLE, GpuRequest
from schemas.remote import Owner

SHOWN_POOLS: Final = 10
"""Pools that a refusal lists."""

SLOT_LABEL: Final = "gpubus.io/slot"
"""Label of a pod that counts among a controller's ``enabled-replicas``: UID of the admission that took its slot."""

_PRIORITY: Final = "nvidia.com/priority"

_known = msgspec.json.Decoder(KubePod)
_whole = msgspec.json.Decoder(dict[str, Any])


class NotYetError(RequestError):
    """A pod that may be right cannot be judged before more is known; it may be created again later."""


class Slot(msgspec.Struct, frozen=True):
    """``enabled-replicas``: the pod is ours only if fewer than ``limit`` pods of ``owner`` are.

    Attributes:
        id: UID of the admission request, which the slot is taken under.
        before: What the pod's label says: its slot, if it comes a second time, or a copy of another pod's; the patch leaves it.
        owner: The controller.
        limit: How many of its pods are ours.
    """

    id: str
    before: str
    owner: str
    limit: int


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a pod that may be created.

    Attributes:
        request: What it asks of us; None for a pod that is not ours.
        patch: What changes in it; for a pod that is not ours at most which nodes it keeps to.
        warnings: What its user should know.
        slot: What must be taken before the patch applies.
        port: The port of its node that must be taken too, and written into the patch.
        left: What changes in the pod without it.
        controller: Whom nothing is known of yet, and has to be: nothing else is said before.
    """

    request: GpuRequest | None = None
    patch: tuple[PatchOperation, ...] = ()
    warnings: tuple[str, ...] = ()
    slot: Slot | None = None
    port: PortWish | None = None
    left: tuple[PatchOperation, ...] = ()
    controller: Owner | None = None


def mutate(
    raw: bytes,
    namespace: str,
    admission: str,
    context: Context,
    makers: Callable[[str, Owner], Made | None] | None = None,
) -> Mutation:
    """Return what becomes of a pod that is to be created.

    Args:
        raw: The pod in JSON.
        namespace: Where it is to be created; the pod may leave it out.
        admission: UID of the admission request, which a slot is taken under.
        context: What operators have set.
        makers: For a namespace and a pod's controller, what is known of that, None for nothing yet; without it all is taken to be
            as the pod says.

    Raises:
        RequestError: It asks for GPUs in a way that cannot be understood or granted; the message is for its user.
    """
    pod, view = _decode(raw, namespace)
    defaults = context.defaults(namespace, view.annotation(keys.PROFILE), view.annotation(POOL_KEY))
    hami, native = _hami(context), tuple(name for name, _ in defaults.native_resources)
    view = migrated(view, context.options.auto_migration, context.namespaces(namespace), native, hami)
    beside = context.options.nvidia_operator_progressive_migration and asks(view, native)
    request = None
    if not beside or speaks(view, hami) or view.scheduler_name in hami.scheduler_names:
        request = context.alike.get(view, lambda pod: parse_pod(pod, tensorfusion_defaults=defaults, hami_config=hami))
    left = diff(pod, {**pod, "spec": apart(pod["spec"])}) if beside else ()
    if request is None:
        return Mutation(patch=left)
    _refuse(pod, request)
    _check_pool(view, request, context.pools)
    check(context.bounds(namespace), request)
    slot = _slot(pod, namespace, view, admission)
    made, controller = None, controller_of(pod["metadata"])
    if controller is not None and (request.remote or slot is not None):
        made = makers(namespace, controller) if makers is not None else assumed(pod["metadata"], controller)
        if made is None:
            return Mutation(request=request, controller=controller)
        made = checked(made, pod["metadata"])
        _check_counted(slot, view, made)
    changed = _copy(pod)
    warnings = _change(changed, view, request, context, native=frozenset(native), admission=admission, made=made)
    if slot is not None:
        changed["metadata"]["labels"] = {
            **(changed["metadata"].get("labels") or {}),
            SLOT_LABEL: slot.before or slot.id,
        }
    elif SLOT_LABEL in view.labels:
        _drop(changed, SLOT_LABEL)
    port = wish_of(changed, view, admission)
    if port is None and PORT_LABEL in view.labels:
        _drop(changed, PORT_LABEL)
    check_stated(changed["spec"], port_of(port.taken) if port is not None else 0, context.options.host_ports)
    return Mutation(
        request=request, patch=diff(pod, changed), warnings=tuple(warnings), slot=slot, port=port, left=left
    )


def _drop(pod: dict[str, Any], label: str) -> None:
    """Take away a label that only we give: somebody else's slot, or none."""
    pod["metadata"]["labels"] = {key: value for key, value in pod["metadata"]["labels"].items() if key != label}


def _hami(context: Context) -> HamiConfig:
    """Return HAMi's words, with which pods that we have given a scheduler are still ours when they come again."""
    options, hami = context.options, context.hami
    ours = {*hami.scheduler_names, options.hami_scheduler, options.extender_scheduler} - {""}
    return msgspec.structs.replace(hami, scheduler_names=tuple(sorted(ours)))


def _decode(raw: bytes, namespace: str) -> tuple[dict[str, Any], PodSpecView]:
    try:
        known, pod = _known.decode(raw), _whole.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("pod", "", f"is no pod that could be created: {error}", "see the Kubernetes API") from None
    if not known.spec.containers:
        raise RequestError("spec.containers", "", "is empty", "a pod has at least one container")
    return pod, with_moved(msgspec.structs.replace(view_of(known), namespace=namespace))


def _copy(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of which all may be changed that :func:`_change` changes; the rest is shared, and so seen to be the same."""
    spec = dict(pod["spec"])
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_container_copy(container) for container in spec[kind]]
    if spec.get("volumes"):
        spec["volumes"] = list(spec["volumes"])
    return {**pod, "metadata": dict(pod["metadata"]), "spec": spec}


def _container_copy(container: dict[str, Any]) -> dict[str, Any]:
    copied = dict(container)
    if copied.get("resources"):
        copied["resources"] = {
            part: dict(amounts) if isinstance(amounts, dict) else amounts
            for part, amounts in copied["resources"].items()
        }
    if copied.get("volumeMounts"):
        copied["volumeMounts"] = list(copied["volumeMounts"])
    return copied


def _refuse(pod: dict[str, Any], request: GpuRequest) -> None:
    node = pod["spec"].get("nodeName")
    if node and not request.remote:
        fix = "leave it out; to choose a node use a node selector"
        raise RequestError(
            "spec.nodeName", node, "gives the pod a node past the scheduler that knows what its GPUs hold", fix
        )


def _check_pool(view: PodSpecView, request: GpuRequest, pools: frozenset[str]) -> None:
    """Refuse a pod for a pool that does not exist: nobody would ever place it, and it would look like one that waits."""
    if request.pool in pools:
        return
    if not pools:
        problem, fix = (
            "cannot be looked for, for no pool is known yet",
            "create a GPUPool, see that a watcher runs, try again",
        )
        raise NotYetError(POOL_KEY, request.pool, problem, fix)
    written = view.annotation(POOL_KEY) or view.labels.get(POOL_KEY, "")
    profile = view.annotation(keys.PROFILE)
    field = keys.PROFILE if profile and not written else POOL_KEY
    value = f"{profile}: {request.pool}" if field == keys.PROFILE else request.pool
    known = sorted(pools)
    shown = ", ".join(known[:SHOWN_POOLS]) + (
        f" or one of {len(known) - SHOWN_POOLS} more" if len(known) > SHOWN_POOLS else ""
    )
    meant = closest(request.pool, known)
    hint = f"did you mean {meant}? " if meant else ""
    raise RequestError(field, value, "names no pool that there is", f"{hint}use {shown}")


def _slot(pod: dict[str, Any], namespace: str, view: PodSpecView, admission: str) -> Slot | None:
    written = view.annotation(keys.ENABLED_REPLICAS)
    if not written:
        return None
    owner = next((one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), None)
    if owner is None:
        fix = "put the pod under a Deployment or another controller, or drop the annotation"
        raise RequestError(keys.ENABLED_REPLICAS, written, "counts pods of one controller, and this pod has none", fix)
    name = f"{namespace}/{owner['kind']}/{owner['name']}/{owner.get('uid', '')}"
    return Slot(id=admission, before=view.labels.get(SLOT_LABEL, ""), owner=name, limit=int(written))


def with_slot(patch: tuple[PatchOperation, ...], slot: Slot, granted: str) -> tuple[PatchOperation, ...]:
    """Return the patch with the label that says which slot was ``granted``, where it leaves another one's."""
    if granted == (slot.before or slot.id):
        return patch
    return (*patch, PatchOperation("add", f"/metadata/labels/{SLOT_LABEL.replace('/', '~1')}", granted))


def _check_counted(slot: Slot | None, view: PodSpecView, made: Made) -> None:
    """Refuse a pod that would count as one of a controller that may not be its own."""
    if slot is not None and made.problem:
        written = view.annotation(keys.ENABLED_REPLICAS)
        fix = "have the controller create the pod, or drop the annotation"
        raise RequestError(keys.ENABLED_REPLICAS, written, f"counts pods of one controller, and {made.problem}", fix)


def _change(
    pod: dict[str, Any],
    view: PodSpecView,
    request: GpuRequest,
    context: Context,
    *,
    native: frozenset[str],
    admission: str,
    made: Made | None,
) -> list[str]:
    """Change a pod that is ours, in place, and return what its user should know."""
    options, spec = context.options, pod["spec"]
    names = {*request.container_names, *(one.name for one in request.containers)}
    common: list[Variable] = []
    warnings: list[str] = []
    if request.dialect == "hami":
        spec["schedulerName"] = scheduler_of(pod, options, options.hami_scheduler)
        taken = {context.hami.count_name, *context.hami.own_names, _PRIORITY}
        move(pod, frozenset(taken), _exclusive(view, request, context.hami))
        if options.nvidia_operator_progressive_migration:
            tolerate(spec)
        if options.gpu_core_policy not in {"", "default"}:
            common.append(literal("GPU_CORE_UTILIZATION_POLICY", options.gpu_core_policy))
    else:
        move(pod, native, {})
        variables, told = tensorfusion(pod, names, view, request, context, admission=admission, made=made)
        common += variables
        warnings += told
    managed = containers(spec, names)
    for container in managed:
        if not request.remote and _container(view, container["name"]).privileged:
            warnings.append(
                f"container {container['name']}: privileged, so it sees every GPU of its node, not only the pod's"
            )
        # What isolation says of a variable counts more.
        own = _variables(view, request, container["name"])
        variables = list({one["name"]: one for one in (*own, *common)}.values())
        warnings += [_overridden(container["name"], name) for name in environment.put(container, variables)]
    none = [literal(environment.NVIDIA_VISIBLE_DEVICES, environment.NO_DEVICES)]
    present = (one for kind in ("initContainers", "containers") for one in spec.get(kind) or ())
    for container in present:
        if container["name"] not in names | ADDED:
            warnings += [_overridden(container["name"], name) for name in environment.put(container, none)]
    return warnings


def _overridden(container: str, name: str) -> str:
    return f"container {container}: {name} is set by gpubus from the pod's allocation; the value in the pod is not used"


def _exclusive(view: PodSpecView, request: GpuRequest, config: HamiConfig) -> dict[str, dict[str, str]]:
    """Return the compute that HAMi's webhook writes on a container which asks for whole GPUs: all of it."""
    one = request.container_names[:1] if not request.containers else ()
    dedicated = one if request.dedicated else tuple(part.name for part in request.containers if part.dedicated)
    return {
        name: {config.core_name: "100"} for name in dedicated if not _container(view, name).resource(config.core_name)
    }


def _container(view: PodSpecView, name: str) -> ContainerView:
    return next(one for one in (*view.init_containers, *view.containers) if one.name == name)


def _place(request: GpuRequest, name: str) -> int | None:
    """Return the place of a container among those with GPUs of their own, as binding counts them; None if all see all."""
    if request.containers:
        return next(place for place, one in enumerate(request.containers) if one.name == name)
    return sorted(request.container_names).index(name) if request.container_counts else None


def _count(request: GpuRequest, name: str) -> int:
    for part in request.containers:
        if part.name == name:
            return part.count
    if request.container_counts:
        return request.container_counts[request.container_names.index(name)]
    return request.count


def _variables(view: PodSpecView, request: GpuRequest, name: str) -> list[Variable]:
    place = _place(request, name)
    if request.remote:
        return [literal("CONTAINER_NAME", name)]
    variables = [environment.visible_devices(place)]
    if request.dialect != "hami":
        return [*variables, literal("CONTAINER_NAME", name)]
    variables += environment.vram_limits("CUDA_DEVICE_MEMORY_LIMIT_", _count(request, name), place)
    share = next((part.compute_milli for part in request.containers if part.name == name), request.compute_milli)
    if share:
        variables.append(literal("CUDA_DEVICE_SM_LIMIT", str(share * 100 // WHOLE)))
    priority = _container(view, name).limits.get(_PRIORITY)
    if priority is not None:
        if priority not in {"0", "1"}:
            raise RequestError(f"container {name} {_PRIORITY}", priority, "is no priority", "write 0 (high) or 1 (low)")
        variables.append(literal("CUDA_TASK_PRIORITY", priority))
    return variables
