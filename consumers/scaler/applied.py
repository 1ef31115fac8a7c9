"""What a worker is to ask for so that advice holds for it, and how it is written on the worker. Pure."""

from typing import Final

import msgspec

from consumers.scaler.learn import bounded
from consumers.scaler.workloads import Asked
from schemas.dialects import tf_keys as keys
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.pod import GpuRequest
from schemas.quantity import format_bytes, format_milli
from schemas.scaling import Advice, WorkloadUse

MARK: Final = "tensor-fusion.ai/applied-recommendation"
"""Annotation of a worker whose amounts are not those of its workload, and whose advice that was."""


def target(asked: Asked, use: WorkloadUse, *, marked: bool) -> tuple[GpuResources, str]:
    """Return what a worker is to ask for, and who says so; nothing where it is to stay as it is.

    Without advice, workers that advice was carried out on go back to what their workload states, as far as their use allows.
    """
    advice: Advice = use.advice
    if advice.source:
        return advice.resources, f"cron {advice.rule}" if advice.rule else advice.source
    return (bounded(asked.stated, use.held), "") if marked else (GpuResources(), "")


def applied(request: GpuRequest, wanted: GpuResources, *, shrinks: bool = True) -> GpuRequest:
    """Return a request with the amounts that are wanted; those of 0 stay, and no limit is below its request.

    A limit of compute is in the unit of its request: annotations state one unit alone. One that is wanted in the other unit is
    left out, and one that is stated in it becomes the request, since no pod may be limited to less than it is granted.

    Args:
        request: What the worker asks for now.
        wanted: What it is to ask for.
        shrinks: Whether VRAM may be taken away.
    """
    asked, most = wanted.requests, wanted.limits
    changes: dict[str, int] = {}
    if asked.tflops_milli or asked.compute_milli:
        changes |= {"tflops_milli": asked.tflops_milli, "compute_milli": asked.compute_milli}
    if asked.vram_bytes and (shrinks or (asked.vram_bytes >= request.vram_bytes and not request.vram_milli)):
        changes |= {"vram_bytes": asked.vram_bytes, "vram_milli": 0}
    if most.vram_bytes and (shrinks or most.vram_bytes >= request.vram_limit_bytes > 0):
        changes |= {"vram_limit_bytes": most.vram_bytes}
    found = msgspec.structs.replace(request, **changes)
    found = msgspec.structs.replace(found, **_compute_limits(found, most))
    return msgspec.structs.replace(found, **_raised(found))


def _compute_limits(request: GpuRequest, most: GpuAmounts) -> dict[str, int]:
    """Return the limits of compute, in the unit of the request alone."""
    percent = bool(request.compute_milli)
    if not percent and not request.tflops_milli:
        percent = bool(most.compute_milli or (not most.tflops_milli and request.compute_limit_milli))
    mine, other = ("compute", "tflops") if percent else ("tflops", "compute")
    limit = getattr(most, f"{mine}_milli") or getattr(request, f"{mine}_limit_milli")
    if not limit and getattr(request, f"{other}_limit_milli"):
        limit = getattr(request, f"{mine}_milli")
    return {f"{mine}_limit_milli": limit, f"{other}_limit_milli": 0}


def _raised(request: GpuRequest) -> dict[str, int]:
    """Return the limits that are stated and below their request, at it."""
    pairs = (
        ("tflops_milli", "tflops_limit_milli"),
        ("compute_milli", "compute_limit_milli"),
        ("vram_bytes", "vram_limit_bytes"),
    )
    return {
        limit: getattr(request, asks) for asks, limit in pairs if 0 < getattr(request, limit) < getattr(request, asks)
    }


def written(request: GpuRequest, source: str) -> dict[str, str | None]:
    """Return the annotations that say what a worker asks for; None takes one away."""

    def amounts(stated: GpuAmounts, tflops: str, compute: str, vram: str) -> dict[str, str | None]:
        return {
            tflops: format_milli(stated.tflops_milli) if stated.tflops_milli else None,
            compute: format_milli(stated.compute_milli * 100) if stated.compute_milli else None,
            vram: format_bytes(stated.vram_bytes) if stated.vram_bytes else None,
        }

    asks = GpuAmounts(
        tflops_milli=request.tflops_milli, compute_milli=request.compute_milli, vram_bytes=request.vram_bytes
    )
    most = GpuAmounts(
        tflops_milli=request.tflops_limit_milli,
        compute_milli=request.compute_limit_milli,
        vram_bytes=request.vram_limit_bytes,
    )
    return {
        **amounts(asks, keys.TFLOPS_REQUEST, keys.COMPUTE_REQUEST, keys.VRAM_REQUEST),
        **amounts(most, keys.TFLOPS_LIMIT, keys.COMPUTE_LIMIT, keys.VRAM_LIMIT),
        MARK: source or None,
    }
