"""One pod as it stands: what it asks for, why it is refused, or that it is none of ours. No I/O."""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from schemas import reasons
from schemas.dialects import RequestError, parse_pod
from schemas.dialects.tf_keys import PROFILE
from schemas.dialects.view import POOL_KEY
from schemas.kube.core import KubePod
from schemas.kube.defaults import Settings
from schemas.kube.views import view_of
from schemas.pod import GpuRequest, Pod


class Refusal(msgspec.Struct, frozen=True):
    """Why a pod cannot be placed by us: a reason code and a sentence for people."""

    reason: str
    message: str


def read_request(pod: KubePod, settings: Settings, claim_problem: Callable[[str, str], str]) -> GpuRequest | Refusal:
    """Return what a pod of ours asks for, or why it is refused.

    Args:
        pod: A pod that names one of our schedulers, or that we have bound for another.
        settings: What operators have set.
        claim_problem: For a namespace and a volume claim, why a pod that mounts it cannot be placed by us; empty if it can.
    """
    try:
        view = view_of(pod)
        annotation = view.annotation
        defaults = settings.defaults(pod.metadata.namespace, annotation(PROFILE), annotation(POOL_KEY))
        hami = settings.hami()
        if pod.spec.scheduler_name not in hami.scheduler_names:  # a kube-scheduler that has us as its extender
            hami = msgspec.structs.replace(hami, scheduler_names=(pod.spec.scheduler_name,))
        request = parse_pod(view, tensorfusion_defaults=defaults, hami_config=hami)
    except RequestError as error:
        return Refusal(reasons.INVALID_REQUEST, str(error))
    if request is None:
        text = f"schedulerName is {pod.spec.scheduler_name!r} but the pod asks for no GPU: drop it, or ask for one"
        return Refusal(reasons.INVALID_REQUEST, text)
    if pod.spec.node_name:
        return request
    problem = _elsewhere(pod, claim_problem)
    return Refusal(reasons.NEEDS_KUBE_SCHEDULER, problem) if problem else request


def project(pod: KubePod, request: GpuRequest) -> Pod:
    """Return what STATE says of a pod."""
    phase = pod.status.phase
    created = pod.metadata.creation_timestamp
    return Pod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        request=request,
        phase="Running" if phase == "Unknown" else phase or "Pending",  # an unknown phase frees nothing
        node=pod.spec.node_name,
        labels=pod.metadata.labels,
        created_at=datetime.fromisoformat(created).astimezone(UTC) if created else None,
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
    for volume in spec.volumes:
        claim = volume.persistent_volume_claim
        name = claim.claim_name if claim is not None else f"{pod.metadata.name}-{volume.name}"
        if claim is not None or volume.ephemeral is not None:
            problem = claim_problem(pod.metadata.namespace, name)
            if problem:
                return f"volume claim {name} {problem}"
    return ""
