"""What the agent knows as Prometheus metrics: under our names, and under those of HAMi's monitor for dashboards that exist.

HAMi's ``hami_vgpu_memory_{context,module,buffer}_bytes`` and ``hami_container_last_kernel_elapsed_seconds`` are not here: only
the limiter inside the container knows them.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bus.exposition import Family, Sample
from producers.agent.holdings import Holdings
from producers.agent.outbox import Outbox
from schemas.cluster import GpuDevice, GpuInventory
from schemas.decision import GpuGrant
from schemas.ledger import Allocation
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

ZONE: Final = {"zone": "vGPU"}
"""A label that every metric of HAMi has."""

MILLI: Final = 1000


class _Gpu(NamedTuple):
    device: GpuDevice
    sample: GpuSample | None
    labels: dict[str, str]
    host: dict[str, str]


class _Share(NamedTuple):
    """One GPU of one container: what was granted, and what it uses."""

    labels: dict[str, str]
    hami: dict[str, str]
    grant: GpuGrant
    uses: list[ProcessUsage]


def families(
    *,
    inventory: GpuInventory | None,
    usage: NodeUsage | None,
    holdings: Holdings,
    outbox: Outbox,
    xids: int,
    kubelet_up: bool,
    driver_up: bool,
    bus_up: bool,
) -> list[Family]:
    """Return everything, as of the newest inventory and sample."""
    found = [
        _one("gpubus_agent_driver_up", "Whether the driver answers.", driver_up),
        _one("gpubus_agent_bus_up", "Whether the bus is connected.", bus_up),
        _one("gpubus_agent_kubelet_up", "Whether the kubelet told its pods' devices.", kubelet_up),
        _one("gpubus_agent_messages_sent_total", "Messages that the bus confirmed.", outbox.sent, "counter"),
        _one("gpubus_agent_messages_lost_total", "Messages given up or overtaken.", outbox.lost, "counter"),
        _one("gpubus_agent_xids_total", "XIDs reported by the driver.", xids, "counter"),
    ]
    if inventory is not None:
        samples = {sample.uuid: sample for sample in usage.gpus} if usage is not None else {}
        gpus = [_gpu(inventory.node, device, samples.get(device.uuid)) for device in inventory.gpus]
        shares = list(_shares(gpus, holdings))
        found += [*_devices(gpus, inventory), *_activity(gpus), *_containers(shares), *_hami(gpus, shares)]
    return found


def _one(name: str, words: str, value: float, kind: str = "gauge") -> Family:
    return Family(name, words, [Sample(float(value))], "counter" if kind == "counter" else "gauge")


def _gpu(node: str, device: GpuDevice, sample: GpuSample | None) -> _Gpu:
    labels = {"node": node, "gpu": device.uuid, "index": str(device.index), "model": device.model}
    host = {
        "node": node,
        "device_index": str(device.index),
        "device_uuid": device.uuid,
        "device_type": device.hami_type,
    } | ZONE
    return _Gpu(device, None if sample is None or sample.absent else sample, labels, host)


def _devices(gpus: list[_Gpu], inventory: GpuInventory) -> Iterator[Family]:
    versions = {"driver": inventory.driver, "cuda": inventory.cuda}
    yield Family(
        "gpubus_gpu_info",
        "What the GPU is.",
        [Sample(1, g.labels | versions | {"pci": g.device.pci, "mode": g.device.mode}) for g in gpus],
    )
    yield Family("gpubus_gpu_healthy", "Whether it takes new pods.", [Sample(g.device.healthy, g.labels) for g in gpus])
    yield Family(
        "gpubus_gpu_trouble",
        "Why it does not.",
        [Sample(1, g.labels | {"problem": trouble.problem}) for g in gpus for trouble in g.device.troubles],
    )
    yield Family(
        "gpubus_gpu_foreign",
        "Whether another allocator or an unmanaged process uses it.",
        [Sample(bool(g.device.used_by), g.labels) for g in gpus],
    )
    yield Family("gpubus_gpu_memory_total_bytes", "Its VRAM.", [Sample(g.device.vram_bytes, g.labels) for g in gpus])


def _activity(gpus: list[_Gpu]) -> Iterator[Family]:
    seen = [(g.sample, g.labels) for g in gpus if g.sample is not None]

    def family(name: str, words: str, samples: Iterable[Sample]) -> Family:
        return Family(f"gpubus_gpu_{name}", words, list(samples))

    yield family("memory_used_bytes", "VRAM in use.", (Sample(s.vram_used_bytes, labels) for s, labels in seen))
    yield family("sm_percent", "Time in which a kernel ran.", (Sample(s.sm_percent, labels) for s, labels in seen))
    yield family(
        "memory_percent", "Time in which memory was accessed.", (Sample(s.memory_percent, labels) for s, labels in seen)
    )
    yield family("temperature_celsius", "Temperature.", (Sample(s.temperature_c, labels) for s, labels in seen))
    yield family("power_watts", "Power draw.", (Sample(s.power_mw / MILLI, labels) for s, labels in seen))
    yield family(
        "clock_mhz",
        "Clocks.",
        (
            Sample(value, labels | {"clock": name})
            for s, labels in seen
            for name, value in (
                ("graphics", s.graphics_clock_mhz),
                ("sm", s.sm_clock_mhz),
                ("memory", s.memory_clock_mhz),
                ("video", s.video_clock_mhz),
            )
        ),
    )
    yield family(
        "traffic_bytes_per_second",
        "Traffic over PCIe and NVLink.",
        (
            Sample(value, labels | {"link": link, "direction": direction})
            for s, labels in seen
            for link, direction, value in (
                ("pcie", "rx", s.pcie_rx_bytes),
                ("pcie", "tx", s.pcie_tx_bytes),
                ("nvlink", "rx", s.nvlink_rx_bytes),
                ("nvlink", "tx", s.nvlink_tx_bytes),
            )
        ),
    )
    yield family(
        "throttled",
        "Why its clocks are lower than they could be.",
        (Sample(1, labels | {"reason": reason}) for s, labels in seen for reason in s.throttle),
    )


def _shares(gpus: list[_Gpu], holdings: Holdings) -> Iterator[_Share]:
    by_uuid = {g.device.uuid: g for g in gpus}
    for uid, allocation in holdings.allocations.items():
        for place, grant in enumerate(allocation.gpus):
            gpu = by_uuid.get(grant.uuid)
            sample = gpu.sample if gpu is not None else None
            uses = [p for p in sample.processes if p.pod_uid == uid] if sample is not None else []
            yield _share(allocation, place, grant, uses, holdings)


def _share(allocation: Allocation, place: int, grant: GpuGrant, uses: list[ProcessUsage], holdings: Holdings) -> _Share:
    request = holdings.requests.get(allocation.pod_uid)
    named = request.container_names[0] if request is not None and request.container_names else ""
    container = next((use.container for use in uses if use.container), named)
    labels = {"namespace": allocation.namespace, "pod": allocation.name, "container": container, "gpu": grant.uuid}
    hami = {
        "namespace": allocation.namespace,
        "pod": allocation.name,
        "container": container,
        "vdevice_index": str(place),
        "device_uuid": grant.uuid,
    } | ZONE
    return _Share(labels, hami, grant, uses)


def _containers(shares: list[_Share]) -> Iterator[Family]:
    yield Family(
        "gpubus_container_memory_granted_bytes",
        "VRAM that the ledger grants.",
        [Sample(share.grant.vram_bytes, share.labels) for share in shares],
    )
    yield Family(
        "gpubus_container_memory_used_bytes",
        "VRAM in use.",
        [Sample(_vram(share), share.labels) for share in shares],
    )
    yield Family(
        "gpubus_container_sm_percent",
        "Compute of the whole GPU in use.",
        [Sample(_percent(share), share.labels) for share in shares],
    )


def _hami(gpus: list[_Gpu], shares: list[_Share]) -> Iterator[Family]:
    seen = [(g.sample, g.host) for g in gpus if g.sample is not None]
    yield Family(
        "hami_host_gpu_memory_used_bytes", "GPU memory in use.", [Sample(s.vram_used_bytes, host) for s, host in seen]
    )
    yield Family(
        "hami_host_gpu_utilization_ratio",
        "GPU utilisation, 0 to 100.",
        [Sample(s.sm_percent, host) for s, host in seen],
    )
    yield Family(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Memory controller utilisation, 0 to 100.",
        [Sample(s.memory_percent, {k: v for k, v in host.items() if k != "node"}) for s, host in seen],
    )
    used = [Sample(_vram(share), share.hami) for share in shares]
    yield Family("hami_vgpu_memory_used_bytes", "Device memory in use.", used)
    yield Family(
        "hami_vgpu_memory_limit_bytes",
        "Device memory granted.",
        [Sample(share.grant.vram_bytes, share.hami) for share in shares],
    )
    yield Family("hami_container_device_memory_bytes", "Device memory in use by the container.", used)
    yield Family(
        "hami_container_device_utilization_ratio",
        "Device utilisation by the container, 0 to 100.",
        [Sample(_percent(share), share.hami) for share in shares],
    )
    instances = {i.uuid: i for g in gpus for i in g.device.instances}
    yield Family(
        "hami_mig_device_info",
        "A MIG device that a container uses.",
        [
            Sample(
                1,
                share.hami
                | {
                    "mig_uuid": use.instance,
                    "profile": instances[use.instance].profile,
                    "gpu_instance_id": str(instances[use.instance].gpu_instance),
                    "compute_instance_id": str(instances[use.instance].compute_instance),
                },
            )
            for share in shares
            for use in share.uses
            if use.instance in instances
        ],
    )


def _vram(share: _Share) -> int:
    return sum(use.vram_bytes for use in share.uses)


def _percent(share: _Share) -> float:
    return min(100.0, sum(use.sm_percent for use in share.uses))
