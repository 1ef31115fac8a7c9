"""Which partition a pod gets of a GPU. MIG-01 and MIG-02 are facts about HAMi v2.10's own unit tests."""

from itertools import compress, pairwise, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.allocator.engine.partitions import Portion, find_place, free_starts, plain
from schemas.hardware import Partition, PartitionTemplate

MIB = 1 << 20
TFLOPS = 312_000


def template(name: str, mib: int, compute: int, slots: int, *starts: int, most: int = 0) -> PartitionTemplate:
    return PartitionTemplate(
        id=name, vram_bytes=mib * MIB, compute_milli=compute, slots=slots, starts=starts, most=most
    )


SMALL = template("1g.5gb", 5120, 140, 1, 0, 1, 2, 3, 4, 5, 6)
MIDDLE = template("2g.10gb", 10240, 280, 2, 0, 2, 4)
LARGE = template("3g.20gb", 20480, 420, 4, 0, 4)
A100 = (SMALL, MIDDLE, LARGE)
WHOLE_A100 = (*A100, template("4g.20gb", 20480, 560, 4, 0), template("7g.40gb", 40960, 1000, 8, 0))


def want(name: str = "", **amounts: int) -> Portion:
    return Portion(plain(name), **{"tflops_milli": 0, "compute_milli": 0, "vram_bytes": 0, "vram_milli": 0} | amounts)


def cut(names: list[str], templates: tuple[PartitionTemplate, ...]) -> list[int | None]:
    held: tuple[Partition, ...] = ()
    starts: list[int | None] = []
    for name in names:
        found = find_place(want(name), templates, TFLOPS, held)
        starts.append(found.start if found else None)
        held += (found,) if found else ()
    return starts


def test_sequence_of_profiles() -> None:  # MIG-01
    assert cut(["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"], A100) == [4, 0, 3, 2]


def test_smallest_profile_that_holds_the_memory() -> None:  # MIG-02
    found = find_place(want(vram_bytes=10_000 * MIB), A100, TFLOPS, ())
    assert found == Partition(template="2g.10gb", start=0, slots=2)


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (["1g.5gb"] * 8, [6, 5, 4, 3, 2, 1, 0, None]),
        (["3g.20gb"] * 3, [4, 0, None]),
        (["7g.40gb", "1g.5gb"], [0, None]),
        (["3g.20gb", "4g.20gb"], [4, 0]),
        (["2g.10gb", "4g.20gb"], [4, 0]),  # from the front it would leave no room for 4g.20gb
        (["2g.10gb", "1g.5gb", "3g.20gb", "1g.5gb"], [4, 6, 0, None]),
    ],
)
def test_what_remains_is_of_most_use(names: list[str], starts: list[int | None]) -> None:
    assert cut(names, WHOLE_A100) == starts


def test_a_larger_template_is_taken_where_the_smallest_has_no_room() -> None:
    held = tuple(Partition(template="x", start=start, slots=1) for start in (0, 2, 4))
    assert find_place(want(vram_bytes=10_000 * MIB), A100, TFLOPS, held) is None
    held = (Partition(template="2g.10gb", start=4, slots=2), Partition(template="2g.10gb", start=6, slots=1))
    found = find_place(want(vram_bytes=10_000 * MIB), (template("2g.10gb", 10240, 280, 2, 4), LARGE), TFLOPS, held)
    assert found == Partition(template="3g.20gb", start=0, slots=4)


def test_amounts_are_held_in_compute_and_memory_alike() -> None:
    def chosen(**amounts: int) -> str:
        found = find_place(want(**amounts), WHOLE_A100, TFLOPS, ())
        return found.template if found else ""

    assert chosen() == "1g.5gb"
    assert chosen(tflops_milli=TFLOPS * 280 // 1000) == "2g.10gb"
    assert chosen(tflops_milli=TFLOPS * 280 // 1000 + 1) == "3g.20gb"
    assert chosen(compute_milli=500) == "4g.20gb"
    assert chosen(vram_milli=250) == "2g.10gb"
    assert chosen(vram_milli=1000) == "7g.40gb"
    assert chosen(compute_milli=1, vram_bytes=40961 * MIB) == ""


@pytest.mark.parametrize("name", ["1g.5gb", "1G.5GB", "mig-1g.5gb", "MIG-1g-5gb", "1g_5gb", "1g/5gb", "1g 5gb"])
def test_spellings_of_a_name(name: str) -> None:
    assert find_place(want(name), A100, TFLOPS, ()) == Partition(template="1g.5gb", start=6, slots=1)


def test_a_named_template_must_hold_the_amounts_too() -> None:
    assert find_place(want("1g.5gb", vram_bytes=6000 * MIB), A100, TFLOPS, ()) is None
    assert find_place(want("9g.90gb"), A100, TFLOPS, ()) is None


def test_most_partitions_of_a_template() -> None:
    assert cut(["1g.5gb+me", "1g.5gb+me"], (template("1g.5gb+me", 5120, 140, 1, 0, 1, most=1),)) == [1, None]


def left_after(
    start: int, own: PartitionTemplate, templates: tuple[PartitionTemplate, ...], held: tuple[Partition, ...]
) -> list[int]:
    """Return, the largest template first, how many of each fit beside each other: every set of places is tried."""
    after = (*held, Partition(template=own.id, start=start, slots=own.slots))
    counts = []
    for other in sorted(templates, key=lambda t: (-t.vram_bytes, -t.slots, -t.compute_milli, t.id)):
        free = free_starts(other, after)
        room = other.most - sum(p.template == other.id for p in after) if other.most else len(free)
        sets = (tuple(compress(free, picked)) for picked in product((False, True), repeat=len(free)))
        apart = [s for s in sets if all(b - a >= other.slots for a, b in pairwise(s))]
        counts.append(min(room, max(map(len, apart))))
    return counts


def with_starts(found: PartitionTemplate) -> st.SearchStrategy[PartitionTemplate]:
    some = st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True)
    return some.map(lambda starts: msgspec.structs.replace(found, starts=tuple(starts)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    templates=st.lists(
        st.builds(
            template,
            st.sampled_from(["1g.a", "2g.a", "3g.a", "4g.a", "7g.a"]),
            st.integers(1, 8),
            st.integers(0, 1000),
            st.integers(1, 4),
            most=st.sampled_from([0, 0, 1, 2]),
        ).flatmap(with_starts),
        min_size=1,
        max_size=4,
        unique_by=lambda t: t.id,
    ).map(tuple),
    asked=st.lists(st.integers(1, 8), max_size=6),
)
def test_partitions_never_overlap_and_none_is_missed(
    templates: tuple[PartitionTemplate, ...], asked: list[int]
) -> None:
    held: tuple[Partition, ...] = ()
    for mib in asked:
        found = find_place(want(vram_bytes=mib * MIB), templates, TFLOPS, held)
        fitting = [t for t in templates if t.vram_bytes >= mib * MIB and free_starts(t, held)]
        assert (found is None) is (not fitting)
        if found is None:
            continue
        own = next(t for t in templates if t.id == found.template)
        assert found.start in own.starts
        assert (own.vram_bytes, own.slots) == min((t.vram_bytes, t.slots) for t in fitting)

        starts = {start: left_after(start, own, templates, held) for start in free_starts(own, held)}
        assert starts[found.start] == max(starts.values())
        held += (found,)
        taken = [slot for partition in held for slot in range(partition.start, partition.start + partition.slots)]
        assert len(taken) == len(set(taken))
