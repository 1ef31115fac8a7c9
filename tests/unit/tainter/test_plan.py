"""What a node says of whether pods hold GPUs of ours there, and that nothing else on it is touched."""

import pytest

from consumers.tainter.plan import patch_of
from schemas.kube.occupied import LABEL, TAINT

GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
OLD = {**TAINT, "effect": "NoSchedule"}
THEIRS = {**TAINT, "value": "someone"}


def node(*taints, **labels):
    meta = {"name": "n", "resourceVersion": "7", "labels": {"kubernetes.io/hostname": "n", **labels}}
    return {"metadata": meta, "spec": {"taints": list(taints)} if taints else {}}


@pytest.mark.parametrize(
    ("before", "occupied", "taints"),
    [
        (node(), True, [TAINT]),
        (node(GPU), True, [GPU, TAINT]),
        (node(GPU, TAINT), False, [GPU]),
        (node(TAINT, **{LABEL: "true"}), False, None),
        (node(OLD, THEIRS), True, [THEIRS, TAINT]),
        (node(OLD, **{LABEL: "true"}), False, None),
        (node(TAINT, OLD, **{LABEL: "true"}), True, [TAINT]),
        (node(TAINT), True, [TAINT]),  # the label is missing
        (node(TAINT, **{LABEL: "yes"}), True, [TAINT]),
    ],
)
def test_what_has_to_change(before, occupied, taints):
    patch = patch_of(before, occupied=occupied)
    assert patch["spec"]["taints"] == taints
    assert patch["metadata"] == {"resourceVersion": "7", "labels": {LABEL: "true" if occupied else None}}


@pytest.mark.parametrize(
    ("before", "occupied"),
    [
        (node(), False),
        (node(GPU, THEIRS), False),
        (node(TAINT, **{LABEL: "true"}), True),
        (node(GPU, {**TAINT, "timeAdded": "2026-11-30T00:00:00Z"}, **{LABEL: "true"}), True),
        ({"metadata": {"name": "n", "resourceVersion": "7"}}, False),
    ],
)
def test_what_is_right_is_left(before, occupied):
    assert patch_of(before, occupied=occupied) is None
