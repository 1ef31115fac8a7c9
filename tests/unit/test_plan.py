"""The capacity formula and sizing table of the HAMi production guide, and the packing beside them."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.cli import main
from deploy.cli.plan import Kind, work_out

GB = 1000**3


def test_the_example_of_the_guide_takes_seven_gpus(capfdbinary):
    code = main.main(["plan", "--pods=100", "--memory=4G", "--gpu-memory=80G", "--utilization=0.8", "--json"])
    said = msgspec.json.decode(capfdbinary.readouterr().out)
    assert code == 0
    assert (said["gpus"], said["gpus_packed"]) == (7, 7)
    assert (said["vram_bytes"], said["usable_bytes"]) == (400 * GB, 64 * GB)


def test_pods_that_leave_a_part_of_each_gpu_idle_take_more_than_the_formula():
    found = work_out([Kind(pods=8, vram_bytes=40 * GB)], 80 * GB, Fraction(8, 10), 8)
    assert (found.gpus, found.gpus_packed) == (5, 8)


@pytest.mark.parametrize(
    ("gpus", "per_node", "size", "cpu"),
    [
        (19, 8, "small", "500m"),
        (20, 8, "medium", "1"),
        (19, 1, "medium", "1"),
        (100, 8, "medium", "1"),
        (101, 8, "large", "2"),
        (500, 8, "large", "2"),
        (201, 1, "very large", "4"),
        (501, 8, "very large", "4"),
    ],
)
def test_the_size_is_the_row_that_both_nodes_and_gpus_are_within(gpus, per_node, size, cpu):
    found = work_out([Kind(pods=gpus, vram_bytes=GB)], GB, Fraction(1), per_node)
    assert (found.gpus, found.size, found.allocator_cpu) == (gpus, size, cpu)


def packed_one_by_one(kinds: list[Kind], usable: int) -> int:
    """Best-fit decreasing, pod by pod."""
    rooms: list[int] = []
    for need in sorted((kind.vram_bytes for kind in kinds for _ in range(kind.pods)), reverse=True):
        fitting = [room for room in rooms if room >= need]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - need)
        else:
            rooms.append(usable - need)
    return len(rooms)


@given(
    st.integers(1, 40).flatmap(
        lambda usable: st.tuples(
            st.just(usable),
            st.lists(st.builds(Kind, st.integers(1, 12), st.integers(1, usable)), min_size=1, max_size=5),
        )
    )
)
def test_whole_kinds_are_packed_as_pods_one_by_one_would_be(case):
    usable, kinds = case
    found = work_out(kinds, usable, Fraction(1), 8)
    assert found.gpus_packed == packed_one_by_one(kinds, usable) >= found.gpus


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ([], "nothing to plan for"),
        (["--pods=3"], "--pods and --memory go together"),
        (["--kind=3"], "--kind is '3': use PODSxVRAM"),
        (["--kind=0x4G"], "use 1 to 1000000"),
        (["--kind=1x4GB"], "--kind"),
        (["--kind=1x0"], "use an amount above 0"),
        (["--kind=1x90G"], "does not fit a GPU"),
        (["--kind=1x4G", "--utilization=1.1"], "--utilization is '1.1'"),
        (["--kind=1x4G", "--utilization=nan"], "--utilization is 'nan'"),
        (["--kind=1x4G", "--gpu-memory=-1"], "--gpu-memory"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_the_fix(capfd, arguments, fix):
    assert main.main(["plan", *arguments]) == 2
    assert fix in capfd.readouterr().err
