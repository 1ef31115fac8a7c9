"""What a pod says of nodes: read from the API's JSON, equal whatever its order, and checked."""

import msgspec
import pytest

from schemas.node_rules import (
    NodeRequirement,
    NodeRules,
    NodeTerm,
    PreferredTerm,
    Toleration,
    whole_number,
)


def test_terms_read_what_the_api_writes() -> None:
    written = b"""{"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}}"""
    term = NodeTerm(
        match_expressions=(NodeRequirement(key="zone", operator="In", values=("a", "b")),),
        match_fields=(NodeRequirement(key="metadata.name", operator="In", values=("n",)),),
    )
    assert msgspec.json.decode(written, type=PreferredTerm) == PreferredTerm(weight=7, preference=term)


def test_order_does_not_matter_and_saying_nothing_is_no_rules() -> None:
    one, other = Toleration(key="a", operator="Exists"), Toleration(operator="Exists", effect="NoSchedule")
    rules = NodeRules.of(selector={"b": "2", "a": "1"}, tolerations=(one, other, one))
    assert rules == NodeRules.of(selector={"a": "1", "b": "2"}, tolerations=(other, one))
    assert hash(rules) == hash(NodeRules.of(selector={"a": "1", "b": "2"}, tolerations=(other, one)))
    assert NodeRules.of(selector={}) is None
    assert NodeRules.of(required=()) == NodeRules(required=())  # matches no node, which is not nothing


@pytest.mark.parametrize(
    ("operator", "values", "fix"),
    [
        ("In", [], "list one at least"),
        ("Exists", ["a"], "drop them"),
        ("Gt", ["1", "2"], "give one whole number"),
        ("Lt", ["1.5"], "give one whole number"),
        ("Like", ["a"], "Invalid enum value"),
    ],
)
def test_a_requirement_that_means_nothing_is_refused(operator: str, values: list[str], fix: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=fix):
        msgspec.convert({"key": "k", "operator": operator, "values": values}, NodeRequirement)


def test_a_toleration_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="drop one of the two"):
        Toleration(key="a", operator="Exists", value="b")
    with pytest.raises(ValueError, match="names no key"):
        Toleration(value="b")


def test_whole_numbers_are_those_of_64_bits() -> None:
    assert [whole_number(text) for text in ("7", "-7", "+07", str(2**63 - 1), str(-(2**63)))] == [
        7, -7, 7, 2**63 - 1, -(2**63),
    ]  # fmt: skip
    assert {whole_number(text) for text in ("", "-", "1.5", "1 ", "x", "٣", str(2**63), "9" * 64)} == {None}
