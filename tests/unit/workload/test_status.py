"""What a workload's status says of pods that call for it and get no worker."""

from consumers.workload.refused import GONE, TAKEN, UNKNOWN, Refused, refusal
from consumers.workload.status import SERVED, workload_status


def pods(names: str, reason: str, text: str = "") -> list[Refused]:
    return [Refused(name, f"uid-{name}", reason, text) for name in names]


def test_pods_that_call_for_a_workload_of_others_are_named_beside_how_it_is_and_not_in_its_place() -> None:
    status = workload_status(0, [], "", "", pods("abcde", TAKEN))
    ready, served = status.conditions
    assert (status.phase, ready.reason) == ("Pending", "ScaledToZero"), "strangers make it no worse"
    assert (served.type, served.status, served.reason) == (SERVED, "False", "NameTaken")
    assert "the pods a, b, c and 2 more" in served.message
    assert "rename" in served.message
    assert len(workload_status(0, [], "", "").conditions) == 1


def test_a_workload_of_which_no_client_has_a_worker_does_not_run() -> None:
    assert workload_status(None, [], "", "").phase == "Running", "as many as none"
    status = workload_status(None, [], "", "", pods("a", GONE))
    assert (status.phase, status.conditions[0].reason) == ("Pending", "NoClientServed")


def test_each_reason_comes_with_what_helps_against_it() -> None:
    assert refusal([]) == ("", "")
    reason, text = refusal(
        [*pods("a", TAKEN), *pods("b", GONE), *pods("c", UNKNOWN, "let the watcher's account get x")]
    )
    assert reason == UNKNOWN
    unknown, gone, taken = text.split("; ")
    assert "the pods c, " in unknown
    assert unknown.endswith("let the watcher's account get x")
    assert "rename" not in unknown + gone
    assert "delete them" in gone
    assert "rename" in taken
