"""Driver calls that do not return."""

import threading

import pytest

from producers.agent.lane import HungError, Lane


async def test_a_call_that_hangs_is_given_up_and_the_lane_comes_back_with_it(lane: Lane) -> None:
    release = threading.Event()
    noted: list[str] = []
    went_on: list[str] = []

    def stuck() -> str:
        release.wait()
        return "late"

    def job() -> str:
        noted.append(lane.call(stuck))
        went_on.append(lane.call(str, "next"))
        return "done"

    with pytest.raises(HungError, match=r"stuck has not returned for 0\.2 s"):
        await lane.run(job)
    assert lane.hung
    with pytest.raises(HungError, match="stuck"):
        await lane.run(lambda: lane.call(int, 1))
    release.set()
    while lane.hung:
        pass
    assert await lane.run(lambda: lane.call(int, "7")) == 7
    assert noted == ["late"]  # a driver that was opened late is known to be open
    assert went_on == []  # nobody waits for what the job would have done next


async def test_the_deadline_is_for_each_call_and_errors_pass_through(lane: Lane) -> None:
    pause = threading.Event()

    def slow() -> None:
        pause.wait(0.08)

    def many() -> int:
        for _ in range(4):
            lane.call(slow)
        return 4

    assert await lane.run(many) == 4
    with pytest.raises(ValueError, match="invalid literal"):
        await lane.run(lambda: lane.call(int, "x"))
    assert not lane.hung
