"""The pools that a cluster keeps: what their objects must be, and which are no longer wanted. Pure."""

from typing import Any

import msgspec

from schemas.kube.base import API_VERSION, GROUP
from schemas.kube.defaults import DEFAULT_POOL, Settings

MANAGED_BY = f"{GROUP}/managed-by"


def wanted_pools(settings: Settings, cluster: str) -> dict[str, dict[str, Any]]:
    """Return the pools of a cluster as they must be, by name (``<cluster>-<pool>``)."""
    item = settings.clusters.items["", cluster]
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TensorFusionCluster",
        "name": cluster,
        "uid": item.metadata.uid,
        "controller": True,
    }
    return {
        f"{cluster}-{pool.name}": {
            "apiVersion": API_VERSION,
            "kind": "GPUPool",
            "metadata": {
                "name": f"{cluster}-{pool.name}",
                "labels": {**item.metadata.labels, MANAGED_BY: cluster},
                "annotations": {DEFAULT_POOL: "true" if pool.is_default else "false"},
                "ownerReferences": [owner],
            },
            "spec": msgspec.to_builtins(pool.spec_template),
        }
        for pool in item.spec.gpu_pools
    }


def unwanted_pools(settings: Settings, cluster: str) -> list[str]:
    """Return the pools that the cluster kept once and names no more."""
    wanted = wanted_pools(settings, cluster)
    return sorted(
        name
        for (_, name), pool in settings.pools.items.items()
        if pool.metadata.labels.get(MANAGED_BY) == cluster and name not in wanted
    )
