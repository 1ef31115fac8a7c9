"""Pods whose containers ask for GPUs of their own, against a search through every way to seat them."""

from itertools import combinations, product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.allocator.engine import Policy, Snapshot, Workload, decide, fits_on, shadow_prices
from schemas.cluster import GpuDevice, GpuInventory, Node, PodKind, Pool
from schemas.decision import Decision, GpuGrant
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from schemas.requirements import ContainerRequest
from tests.property.test_engine_bruteforce import AT

WORKLOAD = Workload((PodKind(gpus=1, share_milli=333, pods=3), PodKind(gpus=2, share_milli=1000)))
POLICIES = [
    Policy(),
    Policy(name="CompactFirst"),
    Policy(name="LowLoadFirst"),
    Policy(name="FragmentationGradient", workload=WORKLOAD),
    Policy(name="PackingValue", workload=WORKLOAD, prices=shadow_prices(WORKLOAD)),
]


@st.composite
def containers(draw: st.DrawFn) -> tuple[ContainerRequest, ...]:
    asked = draw(
        st.lists(
            st.builds(
                ContainerRequest,
                name=st.just("c"),
                count=st.sampled_from([1, 1, 2]),
                compute_milli=st.sampled_from([0, 250, 500, 1000]),
                vram_bytes=st.integers(0, 6),
                dedicated=st.sampled_from([False, False, False, True]),
                init=st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    by_share = draw(st.sampled_from([0, 0, 300]))
    return tuple(
        ContainerRequest(
            name=f"c{place}", count=one.count, compute_milli=one.compute_milli, dedicated=one.dedicated, init=one.init,
            vram_bytes=0 if by_share and place == 1 else one.vram_bytes,
            vram_milli=by_share if place == 1 else 0,
        )
        for place, one in enumerate(asked)
    )  # fmt: skip


requests = st.builds(
    GpuRequest,
    pool=st.just("p"),
    count=st.just(8),
    containers=containers(),
    numa_bind=st.sampled_from([False, False, True]),
    gpu_policies=st.sampled_from([(), (), ("binpack",), ("spread", "mutex")]),
    dialect=st.just("hami"),
)
devices = st.lists(
    st.builds(
        GpuDevice,
        uuid=st.just(""),
        index=st.just(0),
        model=st.just("M"),
        tflops_milli=st.sampled_from([8, 8, 4]),
        vram_bytes=st.sampled_from([9, 9, 12]),
        slots=st.sampled_from([0, 0, 2]),
        numa_node=st.sampled_from([0, 1]),
    ),
    min_size=1,
    max_size=4,
)
held = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(0, 5)), max_size=3)


class Gpu:
    """One GPU as the other pods leave it."""

    def __init__(self, device: GpuDevice, grants: list[GpuGrant]) -> None:
        self.device = device
        self.tflops = device.tflops_milli - sum(grant.tflops_milli for grant in grants)
        self.vram = device.vram_bytes - sum(grant.vram_bytes for grant in grants)
        self.slots = device.slots - sum(grant.slots for grant in grants) if device.slots else 99
        self.idle = not grants
        self.closed = any(grant.exclusive for grant in grants)

    def amounts(self, one: ContainerRequest) -> tuple[int, int]:
        vram = self.device.vram_bytes * one.vram_milli // 1000 if one.vram_milli else one.vram_bytes
        return self.device.tflops_milli * one.compute_milli // 1000, vram

    def holds(self, asked: list[ContainerRequest], *, idle: bool) -> bool:
        """Return whether these containers may be on it at the same time."""
        if not asked:
            return True
        amounts = [self.amounts(one) for one in asked]
        alone = any(one.dedicated for one in asked)
        return (
            not self.closed
            and self.tflops > 0
            and len(asked) <= self.slots
            and sum(tflops for tflops, _ in amounts) <= self.tflops
            and sum(vram for _, vram in amounts) <= self.vram
            and (self.idle or not (idle or alone))
            and (len(asked) == 1 or not alone)
        )


def sets(gpus: list[Gpu], one: ContainerRequest, request: GpuRequest) -> list[tuple[int, ...]]:
    every = combinations(range(len(gpus)), one.count)
    numa = [gpu.device.numa_node for gpu in gpus]
    return [found for found in every if not request.numa_bind or len({numa[place] for place in found}) == 1]


def legal(gpus: list[Gpu], request: GpuRequest, seats: list[tuple[int, ...]]) -> bool:
    idle = "mutex" in request.gpu_policies
    pairs = list(zip(request.containers, seats, strict=True))
    for place, gpu in enumerate(gpus):
        beside = [one for one, found in pairs if place in found and not one.init]
        before = [one for one, found in pairs if place in found and one.init]
        if not gpu.holds(beside, idle=idle) or not all(gpu.holds([one], idle=idle) for one in before):
            return False
    return True


def feasible(gpus: list[Gpu], request: GpuRequest) -> bool:
    return any(
        legal(gpus, request, list(seats))
        for seats in product(*(sets(gpus, one, request) for one in request.containers))
    )


def check(found: Decision, gpus: list[Gpu], request: GpuRequest) -> None:
    """Check that a decision seats every container legally, and takes of each GPU what they come to."""
    places = {gpu.device.uuid: place for place, gpu in enumerate(gpus)}
    assert [grant.name for grant in found.containers] == [one.name for one in request.containers]
    seats = [tuple(places[grant.uuid] for grant in one.gpus) for one in found.containers]
    for one, seat in zip(request.containers, seats, strict=True):
        assert len(set(seat)) == one.count
        assert seat in sets(gpus, one, request)
    assert legal(gpus, request, seats)
    taken = {grant.uuid: grant for grant in found.gpus}
    assert len(taken) == len(found.gpus)
    assert set(taken) == {gpus[place].device.uuid for seat in seats for place in seat}
    for uuid, grant in taken.items():
        gpu = gpus[places[uuid]]
        on = [one for one, seat in zip(request.containers, seats, strict=True) if places[uuid] in seat]
        for part, amount in enumerate((grant.tflops_milli, grant.vram_bytes)):
            beside = sum(gpu.amounts(one)[part] for one in on if not one.init)
            assert amount == max([beside, *(gpu.amounts(one)[part] for one in on if one.init)])
        assert grant.slots == max(1, sum(not one.init for one in on))
        assert grant.exclusive == any(one.dedicated for one in on)


def node(snapshot: Snapshot, found: list[GpuDevice]) -> list[GpuDevice]:
    snapshot.put_pool(Pool(name="p"))
    snapshot.put_node(Node(name="n", pool="p"))
    named = [
        GpuDevice(
            uuid=f"n/{index}", index=index, model=one.model, tflops_milli=one.tflops_milli, vram_bytes=one.vram_bytes,
            slots=one.slots, numa_node=one.numa_node,
        )
        for index, one in enumerate(found)
    ]  # fmt: skip
    snapshot.put_inventory(GpuInventory(node="n", gpus=named, observed_at=AT))
    return named


@settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, max_examples=250)
@given(
    found=devices,
    others=held,
    asked=st.lists(requests, min_size=2, max_size=4),
    policy=st.sampled_from(POLICIES),
)
def test_containers_are_seated_whenever_there_is_a_way_and_booked_exactly(
    found: list[GpuDevice], others: list[tuple[int, int, int]], asked: list[GpuRequest], policy: Policy
) -> None:
    snapshot = Snapshot()
    named = node(snapshot, found)
    grants: dict[str, list[GpuGrant]] = {device.uuid: [] for device in named}

    def add(uid: str, gpus: tuple[GpuGrant, ...]) -> None:
        snapshot.add("n", Allocation(pod_uid=uid, namespace="ns", name="pod", pool="p", gpus=gpus))
        for grant in gpus:
            grants[grant.uuid].append(grant)

    for number, (slot, tflops, vram) in enumerate(others):
        if slot < len(named):
            add(f"other-{number}", (GpuGrant(uuid=f"n/{slot}", index=slot, tflops_milli=tflops, vram_bytes=vram),))
    for number, request in enumerate(asked):
        for each in asked:  # what is cached for one must not hold for long
            decide(snapshot, each, policy)
        gpus = [Gpu(device, grants[device.uuid]) for device in named]
        decision, possible = decide(snapshot, request, policy), feasible(gpus, request)
        assert bool(decision.node) == possible
        assert fits_on(snapshot, request, "n", policy) == possible
        if possible:
            check(decision, gpus, request)
            add(f"pod-{number}", decision.gpus)
