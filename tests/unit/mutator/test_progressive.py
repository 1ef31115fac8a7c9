"""Progressive migration: pods of the native device plugin stay with it, on nodes without GPUs of ours."""

import pytest

from consumers.mutator.options import read_options
from schemas.kube.occupied import LABEL, TOLERATION
from tests.unit.mutator.test_tensorfusion_webhook import ASKS, KEY, ON, admitted, pod

BESIDE = read_options("nvidiaOperatorProgressiveMigration: true")
APART = {"key": LABEL, "operator": "DoesNotExist"}
ONE = {"main": {"nvidia.com/gpu": "1"}}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
NAME = {"key": "metadata.name", "operator": "In", "values": ["n"]}


def terms(changed):
    of_nodes = changed["spec"]["affinity"]["nodeAffinity"]
    return of_nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [({}, {}), ({f"{KEY}enabled": "false"}, {"vram-request": "?"}), (ON, {"enabled-replicas": "0"})],
)
def test_native_pods_keep_everything_and_keep_to_nodes_without_gpus_of_ours(labels, annotations):
    target = pod(annotations, labels=labels, native=ONE)
    changed, found = admitted(target, options=BESIDE)
    assert found.request is None
    assert terms(changed) == [{"matchExpressions": [APART]}]
    del changed["spec"]["affinity"]
    assert changed == target
    again, second = admitted(admitted(target, options=BESIDE)[0], options=BESIDE)
    assert (second.patch, terms(again)) == ((), [{"matchExpressions": [APART]}])


def test_each_alternative_that_the_pod_states_gets_the_condition_and_an_empty_one_stays_empty():
    required = {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}, {"matchFields": [NAME]}, {}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]
    affinity = {
        "podAffinity": {},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    }
    changed, _ = admitted(pod({}, labels={}, native=ONE, spec={"affinity": affinity}), options=BESIDE)
    assert terms(changed) == [
        {"matchExpressions": [ZONE, APART]},
        {"matchFields": [NAME], "matchExpressions": [APART]},
        {},
    ]
    assert changed["spec"]["affinity"]["podAffinity"] == {}
    preferences = changed["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferences == preferred


def test_without_the_switch_such_a_pod_asks_for_a_whole_gpu_in_hamis_words():
    _, found = admitted(pod({}, labels={}, native=ONE))
    assert found.request.dialect == "hami"


def test_pods_in_either_dialect_are_ours_and_share_nodes_with_ours():
    for target in (
        pod(ASKS, native=ONE),
        pod({}, labels={}, native={"main": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}),
        pod({}, labels={}, native=ONE, spec={"schedulerName": "hami-scheduler"}),
    ):
        changed, found = admitted(target, options=BESIDE)
        assert found.request is not None
        assert "affinity" not in changed["spec"]
        assert TOLERATION in changed["spec"]["tolerations"]


def test_pods_that_are_moved_are_ours_and_those_without_a_slot_are_kept_apart():
    both = read_options("{nvidiaOperatorProgressiveMigration: true, autoMigration: {enable: true}}")
    assert admitted(pod({}, labels={}, native=ONE), options=both)[1].request.dialect == "tensorfusion"
    _, found = admitted(pod({"enabled-replicas": "3"}, native=ONE), options=BESIDE)
    assert found.slot.limit == 3
    (operation,) = found.left
    assert (operation.op, operation.path) == ("add", "/spec/affinity")


def test_pods_without_gpus_are_left():
    assert admitted(pod({}, labels={}), options=BESIDE)[1].patch == ()
