"""What a quota says of one pod, before anybody has placed it. Pure; admission and allocators read it the same way."""

from collections.abc import Iterator
from typing import Final

from schemas.pod import WHOLE, GpuRequest
from schemas.quantity import format_bytes, format_milli
from schemas.quota import Quota, Usage

WORDS: Final = {
    "workers": "workers",
    "gpus": "GPUs",
    "tflops_milli": "requests.tflops",
    "compute_milli": "gpucores",
    "vram_bytes": "requests.vram",
    "tflops_limit_milli": "limits.tflops",
    "vram_limit_bytes": "limits.vram",
}
"""What users call the fields of :class:`schemas.quota.Usage`."""


def stated(request: GpuRequest) -> Usage:
    """Return the least that the pod will hold, by what it states."""
    count, tflops, vram = request.count, request.tflops_milli, request.vram_bytes
    if request.containers:  # what containers share of a GPU shows only when the GPUs are chosen
        return Usage(workers=1 if count else 0)
    return Usage(
        workers=1 if count else 0,
        gpus=count,
        tflops_milli=tflops * count,
        compute_milli=request.compute_milli * count,
        vram_bytes=vram * count,
        tflops_limit_milli=max(tflops, request.tflops_limit_milli) * count,
        vram_limit_bytes=max(vram, request.vram_limit_bytes) * count,
    )


def singles(quota: Quota, request: GpuRequest) -> Iterator[tuple[str, str, str]]:
    """Yield what one pod asks too much of: the dimension, the amount and the limit."""
    asked = {
        "gpus": request.count,
        "tflops_milli": request.tflops_milli,
        "vram_bytes": request.vram_bytes,
        "tflops_limit_milli": request.tflops_limit_milli,
        "vram_limit_bytes": request.vram_limit_bytes,
    }
    for name, amount in asked.items():
        limit = getattr(quota.single, name)
        if limit is not None and amount > limit:
            yield WORDS[name], shown(name, amount), shown(name, limit)


def shown(name: str, amount: int) -> str:
    """Return an amount of a dimension as users write it."""
    if name == "compute_milli":
        return f"{100 * amount / WHOLE:g}"
    if name.endswith("_bytes"):
        return format_bytes(amount)
    return format_milli(amount) if name.endswith("_milli") else str(amount)
