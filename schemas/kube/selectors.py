"""Which nodes a selector means, by the rules of Kubernetes."""

from collections.abc import Mapping

from schemas.kube.base import LabelSelector, NodeSelector, SelectorTerm
from schemas.node_rules import holds


def selects(selector: NodeSelector, labels: Mapping[str, str], name: str) -> bool:
    """Return whether one of the selector's terms matches the node. A term without requirements matches none."""
    fields = {"metadata.name": name}
    return any(
        (term.match_expressions or term.match_fields)
        and all(_holds(one, labels) for one in term.match_expressions)
        and all(_holds(one, fields) for one in term.match_fields)
        for term in selector.node_selector_terms
    )


def selects_labels(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether all of a label selector holds; an empty one matches everything."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(one, labels) for one in selector.match_expressions
    )


def _holds(term: SelectorTerm, labels: Mapping[str, str]) -> bool:
    return holds(term.operator, term.values, labels.get(term.key))
