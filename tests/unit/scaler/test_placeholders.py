"""How many placeholders keep a reserve, what each asks for, and which are made and deleted."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scaler.placeholders import (
    MOST,
    RESERVE,
    SHAPE,
    Chunk,
    Present,
    by_placeholders,
    changes,
    pod_of,
    wanted,
)
from consumers.scaler.sizes import Bounds, Machine, PoolView
from schemas.capacity import Offer, Size
from schemas.dialects.text import RequestError
from schemas.kube.pools import CapacityConfig, GPUPoolSpec, ResourceUnit

NOW = datetime(2026, 5, 1, tzinfo=UTC)
GIB = 2**30
NONE = Size()
A100 = (312_000, 80 * GIB)
OFFER = Offer(instance_type="g", gpus=8, model="T4", tflops_milli=65_000, vram_bytes=16 * GIB, microdollars=1)


def size(gpus: float, tflops: int = A100[0], vram: int = A100[1]) -> Size:
    return Size(gpus=int(gpus), tflops_milli=int(gpus * tflops), vram_bytes=int(gpus * vram))


def machine(gpus: int, free: float, gpu: tuple[int, int] = A100) -> Machine:
    return Machine(name=f"m-{gpus}-{gpu[0]}", size=size(gpus, *gpu), free=size(free, *gpu), created_at=NOW)


def view(warm: Size, *machines: Machine, most: Size = NONE, offers: tuple[Offer, ...] = ()) -> PoolView:
    return PoolView(bounds=Bounds(warm=warm, maximum=most), machines=machines, offers=offers)


def spec(mode: str = "AutoSelect", cpu: str = "0", memory: str = "0") -> GPUPoolSpec:
    made = msgspec.convert({"nodeManagerConfig": {"provisioningMode": mode}}, GPUPoolSpec)
    warm = ResourceUnit(tflops="1", vram="1Gi", cpu=cpu, memory=memory)
    return msgspec.structs.replace(made, capacity_config=CapacityConfig(warm_resources=warm))


def test_each_asks_for_an_equal_part_of_the_reserve_that_fits_one_gpu_of_the_pool() -> None:
    found = wanted(view(size(1.5), machine(4, 4)), spec(cpu="9", memory="64Gi"), "cluster")
    half = Chunk(tflops_milli=234_000, vram_bytes=60 * GIB, cpu_milli=4500, memory_bytes=32 * GIB)
    assert (found.number, found.chunk, found.refusal) == (2, half, "")
    assert wanted(view(size(0.5), machine(4, 0)), spec(), "cluster").number == 1


def test_the_most_common_gpu_counts_and_without_one_the_cheapest_offer() -> None:
    t4 = (65_000, 16 * GIB)
    assert wanted(view(size(1), machine(4, 4), machine(8, 8, t4)), spec(), "cluster").number == 5
    assert wanted(view(size(1), offers=(OFFER,)), spec(), "cluster").number == 5
    assert "no GPU of the pool is known" in wanted(view(size(1)), spec(), "cluster").refusal


@pytest.mark.parametrize("scope", ["never", "namespace"])
def test_where_nobody_may_evict_them_there_are_none(scope: str) -> None:
    found = wanted(view(size(1), machine(4, 4)), spec(), scope)
    assert (found.number, found.chunk) == (0, None)
    assert scope in found.refusal


@given(
    st.integers(1, 40), st.integers(0, 64), st.integers(0, 64), st.integers(0, 40),
    st.sampled_from([A100, (65_000, 16 * GIB), (125_000, 24 * GIB)]),
)  # fmt: skip
def test_they_add_up_to_the_reserve_fit_the_gpus_and_never_exceed_the_maximum(
    gpus: int, free: int, halves: int, most: int, gpu: tuple[int, int]
) -> None:
    warm, free = size(halves / 2), min(free, gpus)
    bounds = view(warm, machine(gpus, free, gpu), most=size(most))
    found = wanted(bounds, spec(), "cluster")
    assert found == wanted(bounds, spec(), "cluster")
    if not halves:
        assert found.number == 0
        return
    assert found.chunk is not None
    each = found.chunk.size
    assert (each.tflops_milli <= gpu[0], each.vram_bytes <= gpu[1]) == (True, True)
    taken = size(gpus - free, *gpu).plus(each, found.number)
    if most and found.number:
        assert taken.tflops_milli <= most * A100[0]
        assert taken.vram_bytes <= most * A100[1]
    if not found.refusal:
        assert found.number * each.tflops_milli >= warm.tflops_milli
        assert found.number * each.vram_bytes >= warm.vram_bytes
    assert found.number <= MOST


@pytest.mark.parametrize(
    ("mode", "word", "says"),
    [("Karpenter", "", True), ("AutoSelect", "", False), ("AutoSelect", "placeholders", True), ("Provisioned", "", False),
     ("Provisioned", "claims", False), ("Karpenter", "placeholders", True)],
)  # fmt: skip
def test_what_keeps_a_reserve(mode: str, word: str, says: bool) -> None:
    assert by_placeholders(spec(mode), {RESERVE: word} if word else {}) is says


@pytest.mark.parametrize(
    ("mode", "word"), [("AutoSelect", "pods"), ("Karpenter", "claims"), ("Provisioned", "placeholders")]
)
def test_what_cannot_keep_a_reserve_is_refused(mode: str, word: str) -> None:
    with pytest.raises(RequestError, match=RESERVE):
        by_placeholders(spec(mode), {RESERVE: word})


def test_a_placeholder_that_is_missing_is_made_and_one_too_many_of_another_shape_or_ended_is_deleted() -> None:
    def there(number: int, **more: object) -> Present:
        return msgspec.structs.replace(Present(name=f"p-warm-{number}", uid=str(number), shape="s"), **more)

    present = (there(0), there(1, shape="old"), there(3, ended=True), there(4, leaving=True), there(5))
    make, delete = changes("p", 5, "s", present)
    assert make == ("p-warm-2",)
    assert [one.name for one in delete] == ["p-warm-1", "p-warm-3", "p-warm-5"]
    assert changes("p", 0, "", (there(0),)) == ((), (there(0),))


def test_the_shape_tells_pods_of_other_settings_apart() -> None:
    chunk = Chunk(tflops_milli=1000, vram_bytes=GIB)

    def shape(image: str) -> str:
        return pod_of("p", "u", spec(), chunk, namespace="ns", image=image)["metadata"]["annotations"][SHAPE]

    assert shape("a") == shape("a") != shape("b")
