"""What a worker costs: requests by price, and what limits allow beyond them by a ratio; and what GPUs cost. Pure.

Source: ``qosConfig`` of a TensorFusion pool, the defaults being those of its custom resource, and ``costPerHour`` in the
``hardwareMetadata`` of a ``ProviderConfig``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, get_args

import msgspec

from schemas.catalogue import names
from schemas.kube.pools import QosConfig, QosPrices
from schemas.kube.settings import HardwareModel
from schemas.pod import GpuRequest, Qos

GIB: Final = 2**30
HOUR_S: Final = 3600.0
_NUMBER: Final = re.compile(r"\$?[0-9]{1,12}(\.[0-9]{1,18})?")

Asked = tuple[float, float, float, float]
"""What :func:`amounts` returns."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per hour.

    Attributes:
        per_tflops_hour: ``requests.perFP16TFlopsPerHour``.
        per_gib_hour: ``requests.perGBOfVRAMPerHour``.
        limits_over_requests: Part of these prices for what limits exceed requests by, ``limitsOverRequests``.
    """

    per_tflops_hour: float = 0.0069228
    per_gib_hour: float = 0.01548
    limits_over_requests: float = 1.0


class PoolPrices(msgspec.Struct, frozen=True, kw_only=True):
    """What workers of a pool pay.

    Attributes:
        levels: Prices by quality of service; a level that is not here has none.
        protection_ratio: What a worker's cost is multiplied by while it may not be evicted, ``evictionProtectionPriceRatio``.
    """

    levels: Mapping[Qos, Price]
    protection_ratio: float = 1.2

    def cost(self, qos: Qos, of: Asked, *, gpus: int, seconds: float, protected: bool = False) -> float | None:
        """Return what a worker costs in ``seconds``, in dollars; None where its level has no price.

        Critical workers are never evicted, so protection costs them nothing.
        """
        price = self.levels.get(qos)
        if price is None:
            return None
        ratio = self.protection_ratio if protected and qos != "critical" else 1.0
        return cost(price, of, gpus=gpus, seconds=seconds) * ratio


STANDARD: Final = PoolPrices(levels=dict.fromkeys(get_args(Qos), Price()))
"""Of a pool that sets no prices."""

UNKNOWN: Final = PoolPrices(levels={})
"""Of a pool whose prices cannot be read: no cost is better than a wrong one."""


class PriceError(ValueError):
    """A price cannot be read. The message names the field, the value and the fix."""


def pool_prices(config: QosConfig | None) -> PoolPrices:
    """Return what a pool's ``qosConfig`` says, or the standard prices where it sets none.

    Raises:
        PriceError: One of its numbers is none, or the ratio of protection would make it cheaper.
    """
    if config is None or not config.pricing:
        return STANDARD
    levels: dict[Qos, Price] = {}
    for entry in config.pricing:
        field = f"qosConfig.pricing of {entry.qos}"
        requests = entry.requests or QosPrices()
        levels[entry.qos] = Price(
            per_tflops_hour=_number(requests.per_fp16_tflops_per_hour, f"{field}: perFP16TFlopsPerHour"),
            per_gib_hour=_number(requests.per_gb_of_vram_per_hour, f"{field}: perGBOfVRAMPerHour"),
            limits_over_requests=_number(entry.limits_over_requests, f"{field}: limitsOverRequests"),
        )
    field, written = "qosConfig.evictionProtectionPriceRatio", config.eviction_protection_price_ratio
    ratio = _number(written, field)
    if ratio < 1:
        raise PriceError(f"{field} is {written!r}: protection cannot be cheaper, use 1 or more")
    return PoolPrices(levels=levels, protection_ratio=ratio)


def model_prices(hardware: Iterable[HardwareModel]) -> dict[str, float]:
    """Return dollars per hour of GPUs by every name that a model goes by, from ``hardwareMetadata``.

    A name that an entry states itself counts before one that only the catalogue knows, and a word for few models before one
    for many: ``H100_PCIe`` has its own price beside ``H100``.

    Raises:
        PriceError: A price is no number.
    """
    own: dict[str, float] = {}
    others: list[tuple[tuple[str, ...], float]] = []
    for entry in hardware:
        if entry.cost_per_hour == "":
            continue
        price = _number(str(entry.cost_per_hour), f"hardwareMetadata of {entry.model}: costPerHour")
        for name in filter(None, (entry.model, entry.full_model_name)):
            own[name] = price
            others.append((names(name), price))
    found: dict[str, float] = {}
    for known, price in sorted(others, key=lambda other: len(other[0])):
        for name in known:
            found.setdefault(name, price)
    return found | own


def _number(written: str, field: str) -> float:
    if _NUMBER.fullmatch(written) is None:
        raise PriceError(f"{field} is {written!r}: write a number such as $0.0069")
    return float(written.removeprefix("$"))


def amounts(request: GpuRequest, gpu_tflops_milli: int, gpu_vram_bytes: int) -> Asked:
    """Return TFLOPS and bytes of VRAM per GPU: requested, requested, limit, limit. A missing limit is the request."""
    tflops = (request.tflops_milli or gpu_tflops_milli * request.compute_milli // 1000) / 1000
    vram = float(request.vram_bytes or gpu_vram_bytes * request.vram_milli // 1000)
    tflops_limit = (request.tflops_limit_milli or gpu_tflops_milli * request.compute_limit_milli // 1000) / 1000
    return tflops, vram, max(tflops_limit, tflops), max(float(request.vram_limit_bytes), vram)


def cost(price: Price, of: Asked, *, gpus: int, seconds: float) -> float:
    """Return what a worker with :func:`amounts` per GPU costs in ``seconds``, in dollars."""
    tflops, vram, tflops_limit, vram_limit = of
    requested = tflops * price.per_tflops_hour + vram / GIB * price.per_gib_hour
    over = (tflops_limit - tflops) * price.per_tflops_hour + (vram_limit - vram) / GIB * price.per_gib_hour
    return (requested + over * price.limits_over_requests) * gpus * seconds / HOUR_S
