"""Kubernetes' rules on nodes: selector, node affinity, taints and tolerations.

Source: Kubernetes, ``component-helpers/scheduling/corev1`` (node affinity, ``ToleratesTaint``) and the scheduler's plugins
``NodeAffinity`` and ``TaintToleration``.
"""

from collections.abc import Iterable
from typing import Final

from schemas.cluster import Node
from schemas.node_rules import NodeRequirement, NodeRules, NodeTerm, Taint, Toleration, holds

NAME_FIELD: Final = "metadata.name"
"""The only field of a node that a term can match."""

AVOIDED: Final = 100
"""What a taint with the effect ``PreferNoSchedule`` that is not tolerated takes off: as much as the heaviest term adds."""

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")


def selects(rules: NodeRules, node: Node) -> bool:
    """Return whether the node has every label of the selector."""
    return all(node.labels.get(key) == value for key, value in rules.selector)


def accepts(rules: NodeRules, node: Node) -> bool:
    """Return whether the node matches one of the required terms, if there are any stated."""
    return rules.required is None or any(_matches(term, node) for term in rules.required)


def keeps_off(rules: NodeRules | None, node: Node) -> bool:
    """Return whether a taint keeps the pod off the node."""
    return any(taint.effect in _KEEPS_OFF and not _tolerated(rules, taint) for taint in node.taints)


def preference(rules: NodeRules | None, node: Node) -> int:
    """Return the weights of the preferred terms that a node matches, less ``AVOIDED`` for each taint that asks to avoid it."""
    liked = sum(term.weight for term in rules.preferred if _matches(term.preference, node)) if rules else 0
    shunned = sum(taint.effect == "PreferNoSchedule" and not _tolerated(rules, taint) for taint in node.taints)
    return liked - AVOIDED * shunned


def _matches(term: NodeTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {NAME_FIELD: node.name}
    return all(_meets(one, node.labels) for one in term.match_expressions) and all(
        _meets(one, fields) for one in term.match_fields
    )


def _meets(requirement: NodeRequirement, labels: dict[str, str]) -> bool:
    return holds(requirement.operator, requirement.values, labels.get(requirement.key))


def _tolerated(rules: NodeRules | None, taint: Taint) -> bool:
    tolerations: Iterable[Toleration] = rules.tolerations if rules else ()
    return any(
        one.effect in ("", taint.effect)
        and one.key in ("", taint.key)
        and (one.operator == "Exists" or one.value == taint.value)
        for one in tolerations
    )
