"""Names survive the way into a subject and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import subjects

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=253)


@given(TEXT)
def test_every_name_survives(name):
    encoded = subjects.token(name)
    assert subjects.untoken(encoded) == name
    assert encoded
    assert not set(encoded) & set(".*> \t\r\n")


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_subjects_split_into_the_names_they_were_made_of(names):
    assert subjects.names(subjects.subject(*names)) == tuple(names)


@given(TEXT, TEXT)
def test_different_names_never_share_a_token(one, other):
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


def test_the_longest_kubernetes_name_survives():
    name = ".".join(["a" * 62] * 4)
    assert len(name) == 251
    assert subjects.names(subjects.ledger_node(name + "zz")) == ("ledger", "node", name + "zz")


@pytest.mark.parametrize("text", ["a.b", "a b", "=2e", "=4", "=41", "*", "", "é", "=FF", "a=="])
def test_what_no_name_encodes_to_is_refused(text):
    with pytest.raises(ValueError, match="subject token"):
        subjects.untoken(text)


def test_foreign_subjects_are_refused():
    with pytest.raises(ValueError, match="does not start with 'gpubus'"):
        subjects.names("orders.new")


def test_plain_names_stay_readable():
    assert subjects.ledger_node("gpu-node-1") == "gpubus.ledger.node.gpu-node-1"
    assert subjects.ledger_node("gpu-1.rack-2") == "gpubus.ledger.node.gpu-1=2Erack-2"
    assert subjects.work("release", "") == "gpubus.work.release.="
    assert subjects.rpc("extender.filter") == "gpubus.rpc.extender.filter"
