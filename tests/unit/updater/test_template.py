"""Template hashes: what makes a member out of date, and what does not."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.rollout import Member
from schemas.rollout_template import make_template, member_hashes

RENDERED: dict[str, Any] = {"spec": {"containers": [{"name": "hypervisor", "image": "h:1"}], "hostNetwork": True}}


def member(**facts: Any) -> Member:
    known = {"pool": "p", "component": "hypervisor", "name": "n", "uid": "u", "hash": ""}
    return Member(**known | {"created_at": datetime(2026, 1, 1, tzinfo=UTC)} | facts)


def with_image(image: str) -> dict[str, Any]:
    return {"spec": {**RENDERED["spec"], "containers": [{"name": "hypervisor", "image": image}]}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5), st.integers(0, 99), st.data())
def test_key_order_nulls_and_replicas_change_nothing(
    rendered: dict[str, Any], replicas: int, data: st.DataObject
) -> None:
    rendered.pop("spec", None)
    shuffled = dict(data.draw(st.permutations(list(rendered.items()))))
    shuffled = {"spec": {"replicas": replicas}, **shuffled, "replicas": replicas}
    plain = {**{k: v for k, v in rendered.items() if k != "replicas" and v is not None}, "spec": {}}
    assert make_template(shuffled).hash == make_template(plain).hash


def test_an_image_and_a_provider_revision_change_the_template() -> None:
    hashes = {
        make_template(RENDERED).hash,
        make_template(with_image("h:2")).hash,
        make_template(RENDERED, {"NVIDIA": "1"}).hash,
        make_template(RENDERED, {"NVIDIA": "2"}).hash,
        make_template({"spec": {**RENDERED["spec"], "template": {"replicas": 2}}}).hash,
    }
    assert len(hashes) == 5
    assert all(len(one) <= 63 for one in hashes)  # it is a label


def test_a_member_is_touched_by_its_own_vendor_s_revision_alone() -> None:
    before, after = (
        make_template(RENDERED, {"NVIDIA": "1", "AMD": "1"}),
        make_template(RENDERED, {"NVIDIA": "2", "AMD": "1"}),
    )
    assert before.hash != after.hash
    assert member_hashes(before)(member(vendor="AMD")) == member_hashes(after)(member(vendor="AMD"))
    assert member_hashes(before)(member(vendor="NVIDIA")) != member_hashes(after)(member(vendor="NVIDIA"))


def test_nodes_differ_by_isolation_and_workloads_by_what_they_add_but_not_by_replicas() -> None:
    template = make_template(RENDERED)
    assert member_hashes(template)(member(isolation="hard")) != member_hashes(template)(member(isolation="soft"))
    two, three = member(overrides={"replicas": 2, "gpuCount": 1}), member(overrides={"gpuCount": 1, "replicas": 3})
    assert member_hashes(template)(two) == member_hashes(template)(three)
    assert member_hashes(template)(two) != member_hashes(template)(member(overrides={"gpuCount": 2}))
    assert member_hashes(template)(member(overrides={"replicas": 2})) == member_hashes(template)(member())
