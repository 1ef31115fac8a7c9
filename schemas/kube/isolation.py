"""Which isolation mode a node has in its pool."""

from collections.abc import Mapping

from schemas.kube.base import LabelSelector
from schemas.kube.pools import NodeManagerConfig
from schemas.kube.selectors import selects_labels


def isolation_of(manager: NodeManagerConfig, labels: Mapping[str, str]) -> str:
    """Return the mode of the first rule that matches the node's labels, or the pool's own."""
    for rule in manager.isolation_mode_rules:
        if selects_labels(rule.selector or LabelSelector(), labels):
            return rule.mode
    return manager.default_isolation_mode
