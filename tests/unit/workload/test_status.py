"""What a workload's status says of those that call for it though it is not theirs."""

from consumers.workload.founding import refusal
from consumers.workload.status import SERVED, workload_status


def test_pods_that_call_for_a_workload_of_others_are_named_beside_how_it_is_and_not_in_its_place() -> None:
    names = ("a", "b", "c", "d", "e")
    status = workload_status(0, [], "", "", refusal(names))
    ready, served = status.conditions
    assert (status.phase, ready.reason) == ("Pending", "ScaledToZero"), "strangers make it no worse"
    assert (served.type, served.status, served.reason) == (SERVED, "False", "NameTaken")
    assert "the pods a, b, c and 2 more" in served.message
    assert "rename" in served.message
    assert len(workload_status(0, [], "", "").conditions) == 1
