"""Selector, affinity, taints: what Kubernetes says of which node, and how it is reported."""

from typing import Any

import pytest

from consumers.allocator.engine.affinity import accepts, keeps_off, preference
from schemas.cluster import Node
from schemas.node_rules import NodeRequirement, NodeRules, NodeTerm, PreferredTerm, Taint, Toleration

ZONE_A = NodeTerm(match_expressions=(NodeRequirement(key="zone", operator="In", values=("a",)),))


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ("a", "7"), {"word", "seven"}),
        ("NotIn", ("a", "7"), {"twelve", "none"}),
        ("Exists", (), {"word", "seven", "twelve"}),
        ("DoesNotExist", (), {"none"}),
        ("Gt", ("7",), {"twelve"}),
        ("Lt", ("12",), {"seven"}),
        ("Gt", ("-1",), {"seven", "twelve"}),
    ],
)
def test_operators(operator: Any, values: tuple[str, ...], matching: set[str]) -> None:
    labels = {"word": {"k": "a"}, "seven": {"k": "7"}, "twelve": {"k": "12"}, "none": {}}
    nodes = [Node(name=name, labels=found) for name, found in labels.items()]
    term = NodeTerm(match_expressions=(NodeRequirement(key="k", operator=operator, values=values),))
    assert {node.name for node in nodes if accepts(NodeRules(required=(term,)), node)} == matching


def test_one_term_is_enough_and_a_term_wants_all_it_says() -> None:
    by_name = NodeRequirement(key="metadata.name", operator="In", values=("n",))
    both = NodeTerm(match_expressions=ZONE_A.match_expressions, match_fields=(by_name,))
    node, other = Node(name="n", labels={"zone": "b"}), Node(name="m", labels={"zone": "a"})
    assert [accepts(NodeRules(required=(both, ZONE_A)), one) for one in (node, other)] == [False, True]
    assert accepts(NodeRules(required=(NodeTerm(match_fields=(by_name,)),)), node)
    assert not accepts(NodeRules(required=(NodeTerm(),)), node)
    assert not accepts(NodeRules(required=()), node)
    assert accepts(NodeRules(), node)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        (Toleration(operator="Exists"), True),
        (Toleration(key="gpu", value="yes"), True),
        (Toleration(key="gpu", operator="Equal", value="yes", effect="NoSchedule"), True),
        (Toleration(key="gpu", value="no"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="cpu", operator="Exists"), False),
    ],
)
def test_tolerations(toleration: Toleration | None, tolerated: bool) -> None:
    node = Node(name="n", taints=(Taint(key="gpu", value="yes", effect="NoSchedule"),))
    rules = NodeRules(tolerations=(toleration,)) if toleration else None
    assert keeps_off(rules, node) is not tolerated


def test_a_taint_of_preference_keeps_nobody_off_but_counts_like_the_heaviest_term() -> None:
    node = Node(name="n", labels={"zone": "a"}, taints=(Taint(key="used", effect="PreferNoSchedule"),))
    likes = NodeRules(preferred=(PreferredTerm(weight=30, preference=ZONE_A),))
    assert not keeps_off(None, node)
    assert (preference(None, node), preference(likes, node)) == (-100, -70)
    assert preference(NodeRules(tolerations=(Toleration(key="used", operator="Exists"),)), node) == 0


def test_each_rule_refuses_under_its_own_code_before_anything_else_is_asked(cluster: Any) -> None:
    tainted = {"taints": (Taint(key="k", effect="NoExecute"),)}
    cluster.node("a", labels={"zone": "a"}, **tainted)
    cluster.node("b", labels={"zone": "b"})
    cluster.node("c", labels={"zone": "a"}, ready=False, **tainted)
    cluster.node("d", gpus=None, labels={"zone": "a"}, **tainted)
    rules = NodeRules.of(selector={"zone": "a"})
    for _ in range(2):
        for count in (0, 1):
            found = cluster.decide(count=count, nodes=rules)
            assert [(f.reason, f.nodes, f.gpus) for f in found.filters] == [
                ("NodeSelectorMismatch", 1, count),
                ("NodeNotReady", 1, count),
                ("TaintNotTolerated", 2, count),
            ]
            assert found.reason == "TaintNotTolerated"
        affine = NodeRules.of(required=(NodeTerm(match_expressions=ZONE_A.match_expressions),))
        assert cluster.decide(nodes=affine).filters[0].reason == "NodeAffinityMismatch"
        cluster.fill("b", tflops=1)
    assert (
        cluster.decide(nodes=NodeRules(tolerations=(Toleration(operator="Exists"),), selector=(("zone", "a"),))).node
        == "a"
    )
    cluster.node("a", labels={"zone": "a"})  # the taint is gone
    assert cluster.decide(nodes=rules).node == "a"


def test_preferred_nodes_come_before_the_policys_choice(cluster: Any) -> None:
    for name, zone in (("a", "a"), ("b", "b"), ("c", "b")):
        cluster.node(name, 2, labels={"zone": zone})
    cluster.fill("c", tflops=50_000)
    in_b = NodeTerm(match_expressions=(NodeRequirement(key="zone", operator="In", values=("b",)),))
    likes = NodeRules.of(preferred=(PreferredTerm(weight=1, preference=in_b),))
    found = cluster.decide(compute_milli=500, nodes=likes)
    assert [(one.node, one.parts.get("preferred", 0)) for one in found.candidates] == [("c", 1), ("b", 1), ("a", 0)]
    assert cluster.decide(compute_milli=600, count=2, nodes=likes).node == "b"
    cluster.node("b", 2, labels={"zone": "b"}, taints=(Taint(key="used", effect="PreferNoSchedule"),))
    assert cluster.decide(compute_milli=600, count=2, nodes=likes).node == "a"
    assert cluster.decide(compute_milli=100).candidates[-1].node == "b"  # who says nothing avoids it too
