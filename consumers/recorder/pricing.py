"""What a worker costs: requests by price, and what limits allow beyond them by a ratio. Pure.

Source: ``qosConfig.pricing`` of a TensorFusion pool; the defaults are those of its custom resource.
"""

from typing import Final

import msgspec

from schemas.pod import GpuRequest, Qos

GIB: Final = 2**30
HOUR_S: Final = 3600.0


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


DEFAULT: Final[dict[Qos, Price]] = {"low": Price(), "medium": Price(), "high": Price(), "critical": Price()}


def amounts(request: GpuRequest, gpu_tflops_milli: int, gpu_vram_bytes: int) -> tuple[float, float, float, float]:
    """Return TFLOPS and bytes of VRAM per GPU: requested, requested, limit, limit. A missing limit is the request."""
    tflops = (request.tflops_milli or gpu_tflops_milli * request.compute_milli // 1000) / 1000
    vram = float(request.vram_bytes or gpu_vram_bytes * request.vram_milli // 1000)
    tflops_limit = (request.tflops_limit_milli or gpu_tflops_milli * request.compute_limit_milli // 1000) / 1000
    return tflops, vram, max(tflops_limit, tflops), max(float(request.vram_limit_bytes), vram)


def cost(price: Price, of: tuple[float, float, float, float], *, gpus: int, seconds: float) -> float:
    """Return what a worker with :func:`amounts` per GPU costs in ``seconds``, in dollars."""
    tflops, vram, tflops_limit, vram_limit = of
    requested = tflops * price.per_tflops_hour + vram / GIB * price.per_gib_hour
    over = (tflops_limit - tflops) * price.per_tflops_hour + (vram_limit - vram) / GIB * price.per_gib_hour
    return (requested + over * price.limits_over_requests) * gpus * seconds / HOUR_S
