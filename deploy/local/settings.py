"""What roles are told by their environment, beyond where the bus and the API server are."""

import os
from typing import Final, get_args

from deploy.local.monitoring import SettingError
from schemas.cluster import PreemptionScope

PREEMPTION: Final = "GPUBUS_PREEMPTION"
SCHEDULER_CONFIG: Final = "GPUBUS_SCHEDULER_CONFIG"


def preemption() -> PreemptionScope:
    """Return whose pods may be evicted for others: everybody's unless the environment says otherwise.

    Source: ``preemptClusterWideFromEnv`` in the TensorFusion chart, true by default.

    Raises:
        SettingError: It is no such scope.
    """
    written = os.environ.get(PREEMPTION, "").strip() or "cluster"
    for scope in get_args(PreemptionScope):
        if written == scope:
            found: PreemptionScope = scope
            return found
    raise SettingError(f"{PREEMPTION} is {written!r}: write {', '.join(get_args(PreemptionScope))}")


def scheduler_config() -> tuple[str, str, str] | None:
    """Return namespace, name and key of the ConfigMap that says how pools schedule; None where none is named.

    Raises:
        SettingError: It is no key of a ConfigMap.
    """
    written = os.environ.get(SCHEDULER_CONFIG, "").strip()
    if not written:
        return None
    match written.removeprefix("configmap:").split("/"):
        case [namespace, name, key] if written.startswith("configmap:") and namespace and name and key:
            return namespace, name, key
    raise SettingError(f"{SCHEDULER_CONFIG} is {written!r}: write configmap:NAMESPACE/NAME/KEY")
