"""How much of each GPU a TensorFusion pod asks for and may use.

Four layers say it: annotations, the profile, native GPU limits that are taken over, and the namespace's quota. A layer
overrides those after it field by field, except that compute is in TFLOPS or in percent for the whole pod: the first layer
that states compute decides which, and what others say in the other unit is dropped. Source: TensorFusion,
``internal/webhook/v1/tf_parser.go``.
"""

from typing import Final

from schemas.dialects import text
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.dialects.view import PodSpecView
from schemas.pod import WHOLE
from schemas.quantity import format_bytes, format_milli

WHOLE_COMPUTE: Final = GpuResources(requests=GpuAmounts(compute_milli=WHOLE), limits=GpuAmounts(compute_milli=WHOLE))


def stated(pod: PodSpecView) -> GpuResources:
    """Return what the pod's annotations state, 0 where they state nothing.

    Raises:
        RequestError: An amount is no quantity of 0 or more, a percentage is outside 0 to 100, or compute is stated in both
            units.
    """
    tflops_request, tflops_limit = _milli(pod, keys.TFLOPS_REQUEST), _milli(pod, keys.TFLOPS_LIMIT)
    share_request, share_limit = _share(pod, keys.COMPUTE_REQUEST), _share(pod, keys.COMPUTE_LIMIT)
    if (tflops_request or tflops_limit) and (share_request or share_limit):
        field = keys.COMPUTE_REQUEST if share_request else keys.COMPUTE_LIMIT
        raise RequestError(
            field, pod.annotations[field], "states compute a second time, beside TFLOPS", "keep TFLOPS or percent"
        )
    return GpuResources(
        requests=GpuAmounts(
            tflops_milli=tflops_request, compute_milli=share_request, vram_bytes=_size(pod, keys.VRAM_REQUEST)
        ),
        limits=GpuAmounts(tflops_milli=tflops_limit, compute_milli=share_limit, vram_bytes=_size(pod, keys.VRAM_LIMIT)),
    )


def merged(layers: tuple[GpuResources, ...]) -> GpuResources:
    """Return the layers as one, the first overriding the others. A missing request is what the limit is.

    Raises:
        RequestError: A request exceeds its limit.
    """
    tflops = percent = False
    for layer in layers:
        tflops = bool(layer.requests.tflops_milli or layer.limits.tflops_milli)
        percent = not tflops and bool(layer.requests.compute_milli or layer.limits.compute_milli)
        if tflops or percent:
            break
    limits = _first([layer.limits for layer in layers], tflops=tflops, percent=percent)
    requests = _first([*(layer.requests for layer in layers), limits], tflops=tflops, percent=percent)
    for key, request, limit, show in (
        (keys.TFLOPS_REQUEST, requests.tflops_milli, limits.tflops_milli, format_milli),
        (keys.COMPUTE_REQUEST, requests.compute_milli, limits.compute_milli, _percent),
        (keys.VRAM_REQUEST, requests.vram_bytes, limits.vram_bytes, format_bytes),
    ):
        if limit and request > limit:
            fix = f"raise {key.replace('-request', '-limit')} or lower the request"
            raise RequestError(key, show(request), f"exceeds the limit of {show(limit)}", fix)
    return GpuResources(requests=requests, limits=limits)


def _first(amounts: list[GpuAmounts], *, tflops: bool, percent: bool) -> GpuAmounts:
    def pick(name: str) -> int:
        return next((value for amount in amounts if (value := getattr(amount, name))), 0)

    return GpuAmounts(
        tflops_milli=pick("tflops_milli") if tflops else 0,
        compute_milli=pick("compute_milli") if percent else 0,
        vram_bytes=pick("vram_bytes"),
    )


def _percent(share: int) -> str:
    return f"{100 * share / WHOLE:g}"


def _milli(pod: PodSpecView, key: str) -> int:
    written = pod.annotation(key)
    return text.milli(written, field=key) if written else 0


def _share(pod: PodSpecView, key: str) -> int:
    written = pod.annotation(key)
    return text.share(written, field=key) if written else 0


def _size(pod: PodSpecView, key: str) -> int:
    written = pod.annotation(key)
    return text.size(written, field=key) if written else 0
