"""GPUs that do not exist: the same interface as a driver, for demonstrations and for people without GPUs.

``8xA100-80G`` describes eight of a model of the catalogue, ``4xT4,4xA10`` two kinds. A JSON file can say more::

    {"driver": "550.54.15", "gpus": [{"model": "A100-80G", "count": 8, "nvlinks": 12, "numa_nodes": 2}]}

They do what is granted on them: each pod uses a steady part of its grant, always the same, and the rest idles.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from producers.agent.source import Fault, Hardware, Process, Reading, Seen
from schemas.catalogue import GpuModel, lookup
from schemas.cluster import GpuDevice
from schemas.hardware import GpuLink
from schemas.ledger import Allocation
from schemas.usage import GpuSample

MOST_GPUS: Final = 64
FULL: Final = 100.0
STEADY: Final = (0.55, 0.95)
"""Part of its grant that a pod uses, between these bounds."""

IDLE_C: Final = 32
LOADED_C: Final = 78
IDLE_POWER: Final = 0.15

EXAMPLE: Final = '{"gpus": [{"model": "A100-80G", "count": 8, "nvlinks": 12, "numa_nodes": 2}]}'

_IDENTITIES: Final = uuid.uuid5(uuid.NAMESPACE_OID, "gpubus.agent")
_SHORT: Final = re.compile(r"(?P<count>[0-9]{1,3})x(?P<model>[^,\s]+)")


class DescriptionError(ValueError):
    """A description of simulated GPUs is wrong; the message names the value and the fix."""


class GpuKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some GPUs of one model.

    Attributes:
        model: Name in the catalogue.
        count: How many.
        nvlinks: NVLinks between each two of them.
        numa_nodes: NUMA nodes that they are spread over, in order.
    """

    model: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)] = 1
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    numa_nodes: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All GPUs of a simulated node."""

    gpus: Annotated[tuple[GpuKind, ...], msgspec.Meta(min_length=1)]
    driver: str = "simulated"
    cuda: str = ""


def describe(text: str) -> Description:
    """Return what ``text`` describes: ``<count>x<model>`` with commas, or the path of a JSON file.

    Raises:
        DescriptionError: It is neither, the file cannot be read, or a model is not in the catalogue.
    """
    if text.endswith(".json"):
        try:
            found = msgspec.json.decode(Path(text).read_bytes(), type=Description)
        except OSError as error:
            raise DescriptionError(f"simulated GPUs: {text} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DescriptionError(f"simulated GPUs: {text}: {error}: write it like {EXAMPLE}") from None
    else:
        found = Description(gpus=tuple(map(_kind, text.split(","))))
    for kind in found.gpus:
        try:
            lookup(kind.model)
        except LookupError as error:
            raise DescriptionError(f"simulated GPUs: {error}") from None
    if (count := sum(kind.count for kind in found.gpus)) > MOST_GPUS:
        raise DescriptionError(f"simulated GPUs: {count} on one node: use at most {MOST_GPUS}")
    return found


def _kind(part: str) -> GpuKind:
    match = _SHORT.fullmatch(part)
    if match is None or not int(match["count"]):
        raise DescriptionError(
            f"simulated GPUs: {part!r} is no <count>x<model>: use for example 8xA100-80G, or a path that ends in .json"
        )
    return GpuKind(model=match["model"], count=int(match["count"]))


class Simulated:
    """See :class:`producers.agent.source.Source`.

    Args:
        description: What there is.
        node: Name of the node; the GPUs' UUIDs follow from it.
        held: Returns what pods hold on the node now.
    """

    def __init__(self, description: Description, node: str, held: Callable[[], Iterable[Allocation]]) -> None:
        self._description = description
        self._held = held
        self._gpus = tuple(_devices(description, node))

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def hardware(self) -> Hardware:
        """Return what is described."""
        return Hardware(
            tuple(Seen(device, reset_wanted=False) for _, device, _ in self._gpus),
            tuple(self._links()),
            driver=self._description.driver,
            cuda=self._description.cuda,
        )

    def faults(self) -> tuple[Fault, ...]:
        """Nothing breaks."""
        return ()

    def readings(self) -> tuple[Reading, ...]:
        """Return what pods do with what they hold."""
        held: dict[str, list[tuple[str, int, int]]] = {}
        for allocation in self._held():
            for grant in allocation.gpus:
                held.setdefault(grant.uuid, []).append((allocation.pod_uid, grant.tflops_milli, grant.vram_bytes))
        return tuple(_read(model, device, held.get(device.uuid, [])) for model, device, _ in self._gpus)

    def _links(self) -> Iterator[GpuLink]:
        for first, (_, one, kind) in enumerate(self._gpus):
            for second, (_, other, others_kind) in enumerate(self._gpus[first + 1 :], first + 1):
                near = one.numa_node == other.numa_node
                yield GpuLink(first, second, "node" if near else "system", kind.nvlinks if kind is others_kind else 0)


def _devices(description: Description, node: str) -> Iterator[tuple[GpuModel, GpuDevice, GpuKind]]:
    index = 0
    for kind in description.gpus:
        model = lookup(kind.model)
        for number in range(kind.count):
            device = GpuDevice(
                uuid=f"GPU-{uuid.uuid5(_IDENTITIES, f'{node}/{index}')}",
                index=index,
                model=model.name,
                tflops_milli=model.tflops_milli,
                vram_bytes=model.vram_bytes,
                numa_node=number * kind.numa_nodes // kind.count,
            )
            yield model, device, kind
            index += 1


def _read(model: GpuModel, device: GpuDevice, held: list[tuple[str, int, int]]) -> Reading:
    processes = []
    for uid, tflops_milli, vram_bytes in held:
        part = STEADY[0] + (STEADY[1] - STEADY[0]) * _chance(f"{device.uuid}/{uid}")
        percent = FULL * part * tflops_milli / device.tflops_milli
        processes.append(Process(0, int(vram_bytes * part), min(percent, FULL), pod_uid=uid))
    load = min(1.0, sum(process.sm_percent for process in processes) / FULL)
    sample = GpuSample(
        uuid=device.uuid,
        sm_percent=round(load * FULL, 1),
        vram_used_bytes=min(device.vram_bytes, sum(process.vram_bytes for process in processes)),
        temperature_c=round(IDLE_C + (LOADED_C - IDLE_C) * load),
        power_mw=round(model.power_mw * (IDLE_POWER + (1 - IDLE_POWER) * load)),
    )
    return Reading(sample, tuple(processes))


def _chance(text: str) -> float:
    """Return a number from 0 to below 1 that looks random and belongs to ``text``."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48
