"""One pod as it stands: what it asks for, why it is refused, or that it is none of ours. No I/O."""

from collections.abc import Callable
from typing import Final

import msgspec

from producers.watcher.digests import digest
from schemas import reasons
from schemas.dialects import PREFIXES, RequestError, parse_pod
from schemas.dialects.tf_keys import LOCAL, PROFILE
from schemas.dialects.view import POOL_KEY
from schemas.kube.annotations import written_by_us
from schemas.kube.core import KubePod
from schemas.kube.defaults import Settings
from schemas.kube.views import controller, view_of
from schemas.pod import GpuRequest, Pod
from schemas.slots import HOST_PORT_SLOT

MOST: Final = 4096
"""Ways of writing a pod that are remembered, about 2 kB each."""

_REMOTE: Final = (
    f"{LOCAL} is false, so the pod takes no GPU of its node, yet it names our scheduler: drop schedulerName"
)

_key = msgspec.msgpack.Encoder()


class Refusal(msgspec.Struct, frozen=True):
    """Why a pod cannot be placed by us: a reason code and a sentence for people."""

    reason: str
    message: str


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a pod asks for, and the digest of that."""

    request: GpuRequest
    digest: bytes


class Reader:
    """Reads what pods ask for, once for all that are written alike, as those of one controller are.

    Args:
        settings: What operators have set. When that changes, say so with :meth:`forget`.
        claim_problem: For a namespace and a volume claim, why a pod that mounts it cannot be placed by us; empty if it can.
    """

    def __init__(self, settings: Settings, claim_problem: Callable[[str, str], str]) -> None:
        self._settings = settings
        self._claim_problem = claim_problem
        self._known: dict[bytes, Asked | Refusal] = {}

    def forget(self) -> None:
        """Settings have changed: what was read may mean something else now."""
        self._known.clear()

    def read(self, pod: KubePod) -> Asked | Refusal:
        """Return what a pod of ours asks for, or why it is refused: one that names us, or that we have bound for another."""
        asked = self._asked(pod)
        if isinstance(asked, Refusal) or pod.spec.node_name:
            return asked
        if asked.request.remote:
            return Refusal(reasons.INVALID_REQUEST, _REMOTE)
        problem = _elsewhere(pod, self._claim_problem)
        return Refusal(reasons.NEEDS_KUBE_SCHEDULER, problem) if problem else asked

    def _asked(self, pod: KubePod) -> Asked | Refusal:
        meta, spec = pod.metadata, pod.spec
        # A request is read from these alone: a pod's name, its node, other people's words and what we write are not in it.
        labels, annotations = _ours(meta.labels), _ours(meta.annotations)
        containers = [(one.name, one.resources, one.security_context, one.restart_policy) for one in spec.containers]
        first = [(one.name, one.resources, one.security_context, one.restart_policy) for one in spec.init_containers]
        own = (
            meta.namespace, labels, annotations, controller(pod), containers, first, spec.scheduler_name, spec.priority,
            spec.priority_class_name, spec.preemption_policy, spec.node_selector, spec.affinity, spec.tolerations,
        )  # fmt: skip
        key = _key.encode(own)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[key] = self._parse(pod, labels, annotations)
        return found

    def _parse(self, pod: KubePod, labels: dict[str, str], annotations: dict[str, str]) -> Asked | Refusal:
        try:
            view = msgspec.structs.replace(view_of(pod), name="", labels=labels, annotations=annotations)
            annotation = view.annotation
            defaults = self._settings.defaults(view.namespace, annotation(PROFILE), annotation(POOL_KEY))
            hami = self._settings.hami()
            if view.scheduler_name not in hami.scheduler_names:  # a kube-scheduler that has us as its extender
                hami = msgspec.structs.replace(hami, scheduler_names=(view.scheduler_name,))
            request = parse_pod(view, tensorfusion_defaults=defaults, hami_config=hami)
        except RequestError as error:
            return Refusal(reasons.INVALID_REQUEST, str(error))
        if request is None:
            text = f"schedulerName is {view.scheduler_name!r} but the pod asks for no GPU: drop it, or ask for one"
            return Refusal(reasons.INVALID_REQUEST, text)
        return Asked(request, digest(request))


def _ours(written: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in written.items() if key.startswith(PREFIXES) and not written_by_us(key)}


def project(pod: KubePod, request: GpuRequest) -> Pod:
    """Return what STATE says of a pod."""
    phase = pod.status.phase
    return Pod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        request=request,
        phase="Running" if phase == "Unknown" else phase or "Pending",  # an unknown phase frees nothing
        node=pod.spec.node_name,
        labels=pod.metadata.labels,
        created_at=pod.metadata.created_at,
    )


def _elsewhere(pod: KubePod, claim_problem: Callable[[str, str], str]) -> str:
    """Return what only kube-scheduler can promise of what the pod asks for; empty if nothing."""
    spec = pod.spec
    if spec.affinity is not None and (
        spec.affinity.pod_affinity is not None or spec.affinity.pod_anti_affinity is not None
    ):
        return "the pod has affinity or anti-affinity to other pods"
    if spec.topology_spread_constraints:
        return "the pod has topology spread constraints"
    if spec.resource_claims:
        return "the pod has resource claims"
    given = pod.metadata.labels.get(HOST_PORT_SLOT, "").partition(".")[0]
    for container in (*spec.init_containers, *spec.containers):
        for port in container.ports:
            if port.host_port and str(port.host_port) != given:
                return f"container {container.name} takes port {port.host_port} of its node, which others may have"
    for volume in spec.volumes:
        claim = volume.persistent_volume_claim
        name = claim.claim_name if claim is not None else f"{pod.metadata.name}-{volume.name}"
        if claim is not None or volume.ephemeral is not None:
            problem = claim_problem(pod.metadata.namespace, name)
            if problem:
                return f"volume claim {name} {problem}"
    return ""
