"""The kinds of nodes that can be had: those that an operator lists, and those that were claimed before."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.capacity import Offer
from schemas.catalogue import UnknownModelError, lookup
from schemas.dialects.text import RequestError
from schemas.kube.nodes import GPUNodeClaimSpec
from schemas.kube.pools import Requirement
from schemas.quantity import QuantityError, format_bytes, format_milli, parse_bytes, parse_milli

_MODEL: Final = "gpuModel"
_VENDOR: Final = "gpuVendor"
MOST_GPUS: Final = 128
MOST_BYTES: Final = 1 << 20


class _Written(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One entry of the file. Amounts are of one GPU; those of a known model may be left out."""

    instance_type: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    gpu_model: Annotated[str, msgspec.Meta(min_length=1)]
    gpus: Annotated[int, msgspec.Meta(ge=1, le=128)]
    cost_per_hour: str | float | int
    tflops: str | float | int = ""
    vram: str | int = ""
    vendor: str = "NVIDIA"
    cpu: str | float | int = "0"
    memory: str | int = "0"
    region: str = ""
    zones: tuple[str, ...] = ("",)
    capacity_type: Literal["OnDemand", "Reserved", "Spot"] = "OnDemand"
    labels: dict[str, str] = {}


class OffersError(ValueError):
    """The file of offers cannot be used. The message names the entry, the field and the fix."""


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Return what a YAML file lists: entries with ``instanceType``, ``gpuModel``, ``gpus`` and ``costPerHour``.

    Raises:
        OffersError: It cannot be read, or an entry is wrong.
    """
    try:
        text = path.read_bytes()
        if len(text) > MOST_BYTES:
            raise OffersError(f"offers {path}: {len(text)} bytes are more than {MOST_BYTES}")
        entries = msgspec.yaml.decode(text, type=list[Any])
    except (OSError, msgspec.DecodeError) as error:
        raise OffersError(f"offers {path}: {error}; write a YAML list of offers") from None
    found: dict[str, Offer] = {}
    for number, entry in enumerate(entries):
        field = f"offers {path}, entry {number + 1}"
        try:
            written = msgspec.convert(entry, _Written)
            for zone in written.zones or ("",):
                offer = _offer(written, zone, field)
                if offer.key in found:
                    raise OffersError(f"{field}: {offer.key} is listed twice: drop one")
                found[offer.key] = offer
        except (msgspec.ValidationError, QuantityError) as error:
            raise OffersError(f"{field}: {error}") from None
    return tuple(found[key] for key in sorted(found))


def _offer(written: _Written, zone: str, field: str) -> Offer:
    try:
        known = lookup(written.gpu_model)
    except UnknownModelError:
        known = None
    if known is None and not (written.tflops and written.vram):
        raise OffersError(f"{field}: gpuModel {written.gpu_model!r} is not in the catalogue: state tflops and vram too")
    tflops = parse_milli(str(written.tflops), field="tflops") if written.tflops else 0
    vram = parse_bytes(str(written.vram), field="vram") if written.vram else 0
    for name, text, amount in (("tflops", written.tflops, tflops), ("vram", written.vram, vram)):
        if text != "" and amount < 1:
            raise OffersError(f"{field}: {name} '{text}' is no GPU's: state what one GPU has, or leave {name} out")
    return Offer(
        instance_type=written.instance_type, gpus=written.gpus, model=written.gpu_model, vendor=written.vendor,
        tflops_milli=tflops or (known.tflops_milli if known else 0), vram_bytes=vram or (known.vram_bytes if known else 0),
        cpu_milli=parse_milli(str(written.cpu), field="cpu"), memory_bytes=parse_bytes(str(written.memory), field="memory"),
        microdollars=parse_milli(str(written.cost_per_hour).lstrip("$"), field="costPerHour") * 1000,
        region=written.region, zone=zone, capacity_type=written.capacity_type, labels=written.labels,
    )  # fmt: skip


def claim_spec(offer: Offer, name: str, node_class: str) -> dict[str, Any]:
    """Return the ``spec`` of a claim for an offer; amounts are those of all its GPUs."""
    size = offer.size
    spec: dict[str, Any] = {
        "nodeName": name,
        "instanceType": offer.instance_type,
        "region": offer.region,
        "zone": offer.zone,
        "capacityType": offer.capacity_type,
        "tflopsOffered": format_milli(size.tflops_milli),
        "vramOffered": format_bytes(size.vram_bytes),
        "gpuDeviceOffered": offer.gpus,
        "extraParams": {_MODEL: offer.model, _VENDOR: offer.vendor},
    }
    if node_class:
        spec["nodeClassRef"] = {
            "name": node_class,
            "group": "tensor-fusion.ai",
            "kind": "GPUNodeClass",
            "version": "v1",
        }
    return spec


def offer_of(spec: GPUNodeClaimSpec, known: Iterable[Offer]) -> Offer:
    """Return what a claim is for: the offer of that kind if it is known, else what the claim itself says.

    Raises:
        RequestError: It says nothing that a node could be.
    """
    capacity = spec.capacity_type if isinstance(spec.capacity_type, str) else "OnDemand"
    key = f"{spec.instance_type}/{spec.region}/{spec.zone}/{capacity}"
    same = next((one for one in known if one.key == key), None)
    if same is not None:
        return same
    gpus = spec.gpu_device_offered
    tflops = parse_milli(str(spec.tflops_offered), field="tflopsOffered")
    vram = parse_bytes(str(spec.vram_offered), field="vramOffered")
    if not 1 <= gpus <= MOST_GPUS or tflops < gpus or vram < gpus:
        raise RequestError(
            "spec.gpuDeviceOffered", str(gpus), f"with {tflops / 1000:g} TFLOPS and {vram} bytes of VRAM is no node",
            "state gpuDeviceOffered, tflopsOffered and vramOffered",
        )  # fmt: skip
    return Offer(
        instance_type=spec.instance_type, gpus=gpus, model=spec.extra_params.get(_MODEL, ""),
        vendor=spec.extra_params.get(_VENDOR, "NVIDIA"), tflops_milli=tflops // gpus, vram_bytes=vram // gpus,
        region=spec.region, zone=spec.zone, capacity_type=capacity,
    )  # fmt: skip


_LABELS: Final = {
    "node.kubernetes.io/instance-type": "instance_type",
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
}
_CAPACITY: Final = ("karpenter.sh/capacity-type", "capacity-type")
_CAPACITY_WORDS: Final = {"OnDemand": "on-demand", "Reserved": "reserved", "Spot": "spot"}


def satisfies(offer: Offer, requirements: Iterable[Requirement]) -> bool:
    """Return whether nodes of an offer would be as a pool requires (``gpuRequirements``)."""
    return all(_meets(offer, one) for one in requirements)


def _meets(offer: Offer, requirement: Requirement) -> bool:
    key = requirement.key
    if key in _CAPACITY:
        values = {offer.capacity_type, _CAPACITY_WORDS[offer.capacity_type]}
    elif key in _LABELS:
        values = {str(getattr(offer, _LABELS[key]))} - {""}
    else:
        values = {offer.labels[key]} if key in offer.labels else set()
    match requirement.operator:
        case "In":
            return bool(values & set(requirement.values))
        case "Exists":
            return bool(values)
        case "DoesNotExist":
            return not values
    number = next((int(value) for value in values if value.isdecimal()), None)
    bound = next((int(value) for value in requirement.values if value.isdecimal()), None)
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound
