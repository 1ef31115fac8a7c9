"""Which pods a TensorFusion pod must be placed with, and how near its GPUs must be to each other."""

from typing import Final, get_args

from schemas.dialects import text
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import WorkloadProfile
from schemas.dialects.view import PodSpecView
from schemas.placement import Topology, TopologySource
from schemas.requirements import Gang

SMALLEST: Final = 2
"""Members of the smallest gang: one pod alone waits for nobody."""

FURTHEST_TIER: Final = 3


def gang(pod: PodSpecView, profile: WorkloadProfile, enabled_replicas: int | None) -> Gang | None:
    """Return the pod's gang, or None when it is in none.

    Every member must fit unless ``gang-min-members`` says how many. How many there are in all is ``enabled-replicas``, else
    the profile's replicas, else what the controller wants.

    Raises:
        RequestError: A gang size is below 2 or above the members there are, the size is unknown, or the pod belongs to no
            workload whose other pods could be the members.
    """
    written, timeout = pod.annotation(keys.GANG_MIN), pod.annotation(keys.GANG_TIMEOUT)
    switch = pod.annotation(keys.GANG_ENABLED)
    minimum = text.integer(written, field=keys.GANG_MIN, least=SMALLEST) if written else 0
    timeout_s = text.seconds(timeout, field=keys.GANG_TIMEOUT) if timeout else None
    if switch and not text.boolean(switch, field=keys.GANG_ENABLED):
        return None
    if not switch and profile.gang is None:
        if written or timeout:
            field = keys.GANG_MIN if written else keys.GANG_TIMEOUT
            fix = f'add {keys.GANG_ENABLED}: "true", or "false" to place it alone'
            raise RequestError(field, written or timeout, "is stated for a pod in no gang", fix)
        return None
    planned = profile.gang
    if not minimum and planned:
        minimum = planned.min_members
        if minimum == 1:
            raise RequestError("profile gangScheduling.minMembers", "1", "is no gang", "write 2 or more, or 0 for all")
    if timeout_s is None:
        timeout_s = planned.timeout_s if planned else 0
    desired = next((n for n in (enabled_replicas, profile.replicas, pod.owner_replicas) if n is not None), None)
    return Gang(key=_key(pod), min_members=_required(minimum, desired), desired=desired or 0, timeout_s=timeout_s)


def topology(pod: PodSpecView) -> Topology | None:
    """Return what is asked of the GPUs' topology, or None when nothing is.

    Raises:
        RequestError: A value is no truth value, no tier from 0 to 3, or no known source.
    """
    required, tier, source = (
        pod.annotation(key) for key in (keys.TOPOLOGY_REQUIRED, keys.TOPOLOGY_TIER, keys.TOPOLOGY_SOURCE)
    )
    if not (required or tier or source):
        return None
    sources: tuple[TopologySource, ...] = get_args(TopologySource)
    return Topology(
        required=text.boolean(required, field=keys.TOPOLOGY_REQUIRED) if required else None,
        max_tier=text.integer(tier, field=keys.TOPOLOGY_TIER, least=0, most=FURTHEST_TIER) if tier else None,
        source=text.word(source, field=keys.TOPOLOGY_SOURCE, words=sources) if source else None,
    )


def _key(pod: PodSpecView) -> str:
    workload = pod.labels.get(keys.WORKLOAD) or pod.owner
    if not workload:
        fix = "create it through a Deployment, a Job or another controller"
        raise RequestError(keys.GANG_ENABLED, "true", "is set on a pod without a controller", fix)
    return f"{pod.namespace}/{workload}"


def _required(minimum: int, desired: int | None) -> int:
    if minimum:
        if desired is not None and minimum > desired:
            fix = f"lower it to {desired} or run more replicas"
            raise RequestError(keys.GANG_MIN, str(minimum), f"is more than the {desired} members there are", fix)
        return minimum
    if desired is None:
        fix = f"state {keys.GANG_MIN} or {keys.ENABLED_REPLICAS}"
        raise RequestError(keys.GANG_ENABLED, "true", "is set for a workload of unknown size", fix)
    if desired < SMALLEST:
        fix = "run 2 replicas or more, or drop the annotation"
        raise RequestError(keys.GANG_ENABLED, "true", f"is set for a workload of size {desired}", fix)
    return desired
