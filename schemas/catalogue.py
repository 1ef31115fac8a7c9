"""GPU models and what one device of each can do: the numbers that neither a trace nor the driver tells.

Compute is dense FP16 throughput with tensor cores where the model has them, as vendors state it.

A model goes by many names: ``NVIDIA H100 80GB HBM3`` is what NVML reports, ``NVIDIA-H100-80GB-HBM3`` a node's label
``nvidia.com/gpu.product``, ``H100_SXM`` TensorFusion's word and ``H100`` what people write. :func:`names` brings them together.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

GIB: Final = 2**30


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of GPU.

    Attributes:
        name: The short name that traces and simulations use.
        tflops_milli: Physical FP16 compute in thousandths of a TFLOPS.
        vram_bytes: Physical VRAM, the nominal size.
        power_mw: Board power limit in milliwatts.
        nvml: Names under which the driver reports it; variants that differ in nothing here stand together.
        aliases: What else people call it. A word that several models have in common names all of them.
        stand_in: Whether the numbers are invented, because the publisher keeps the model secret.
    """

    name: str
    tflops_milli: int
    vram_bytes: int
    power_mw: int
    nvml: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    stand_in: bool = False


def _model(
    name: str, tflops_milli: int, vram_gib: int, power_w: int, *nvml: str, aliases: str = "", stand_in: bool = False
) -> GpuModel:
    return GpuModel(
        name=name,
        tflops_milli=tflops_milli,
        vram_bytes=vram_gib * GIB,
        power_mw=power_w * 1000,
        nvml=nvml,
        aliases=tuple(aliases.split()),
        stand_in=stand_in,
    )


MODELS: Final = {
    model.name: model
    for model in (
        # NVIDIA data sheets of each product, the row "FP16 Tensor Core" without sparsity.
        _model("T4", 65_000, 16, 70, "Tesla T4", "NVIDIA T4"),
        _model("P100", 18_700, 16, 250, "Tesla P100-PCIE-16GB", "Tesla P100-PCIE-12GB", aliases="P100_PCIe"),
        _model("V100M16", 125_000, 16, 300, "Tesla V100-SXM2-16GB", aliases="V100 V100_SXM V100_SXM_16G V100_SXM2"),
        _model(
            "V100M32",
            125_000,
            32,
            300,
            "Tesla V100-SXM2-32GB",
            "Tesla V100-SXM3-32GB",
            aliases="V100 V100_SXM V100_SXM_32G V100_SXM2",
        ),
        _model("P100-SXM2", 21_200, 16, 300, "Tesla P100-SXM2-16GB", aliases="P100 P100_SXM"),
        _model(
            "V100-PCIE",
            112_000,
            32,
            250,
            "Tesla V100-PCIE-32GB",
            "Tesla V100-PCIE-16GB",
            aliases="V100 V100_PCIe_32G V100_PCIe_16G",
        ),
        _model("A2", 18_000, 16, 60, "NVIDIA A2"),
        _model("A10", 125_000, 24, 150, "NVIDIA A10"),
        _model("A10G", 70_000, 24, 300, "NVIDIA A10G"),
        _model("A16", 17_900, 16, 250, "NVIDIA A16"),
        _model("A30", 165_000, 24, 165, "NVIDIA A30"),
        _model("A40", 149_700, 48, 300, "NVIDIA A40", "NVIDIA A40-PCIE-48GB"),
        _model(
            "A100-40G",
            312_000,
            40,
            400,
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100 40GB PCIe",
            aliases="A100 A100_SXM A100_PCIe A100_SXM_40G A100_PCIe_40G",
        ),
        _model(
            "A100-80G",
            312_000,
            80,
            400,
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A100-PCIE-80GB",
            aliases="A100 A100_SXM A100_PCIe A100_SXM_80G A100_PCIe_80G",
        ),
        _model(
            "A800-80G",
            312_000,
            80,
            400,
            "NVIDIA A800-SXM4-80GB",
            "NVIDIA A800 80GB PCIe",
            aliases="A800 A800_SXM A800_PCIe A800_SXM_80G A800_PCIe_80G",
        ),
        _model("L4", 121_000, 24, 72, "NVIDIA L4"),
        _model("L20", 119_500, 48, 275, "NVIDIA L20"),
        _model("L40", 181_000, 48, 300, "NVIDIA L40"),
        _model("L40S", 362_000, 48, 350, "NVIDIA L40S"),
        _model("H20", 148_000, 96, 400, "NVIDIA H20"),
        _model("H100", 989_400, 80, 700, "NVIDIA H100 80GB HBM3", aliases="H100_SXM H100_SXM5 H100_80G"),
        _model("H100-PCIE", 756_000, 80, 350, "NVIDIA H100 PCIe", aliases="H100 H100_PCIe_80G"),
        _model("H100-NVL", 835_500, 94, 400, "NVIDIA H100 NVL", aliases="H100 H100_NVL_94G"),
        _model("H800", 989_400, 80, 700, "NVIDIA H800", "NVIDIA H800 80GB HBM3", aliases="H800_SXM H800_80G"),
        _model("H200", 989_400, 141, 700, "NVIDIA H200", aliases="H200_SXM H200_141G"),
        _model("H200-NVL", 835_500, 141, 600, "NVIDIA H200 NVL", aliases="H200"),
        _model("GH200", 989_400, 96, 900, "NVIDIA GH200 480GB"),
        _model("B200", 2_250_000, 180, 1000, "NVIDIA B200", aliases="B200_SXM B200_180G"),
        _model("RTX-A6000", 154_800, 48, 300, "NVIDIA RTX A6000", aliases="A6000"),
        _model("RTX-6000-ADA", 364_200, 48, 300, "NVIDIA RTX 6000 Ada Generation", aliases="A6000Ada RTX6000Ada"),
        _model("RTX-3090", 142_000, 24, 350, "NVIDIA GeForce RTX 3090"),
        _model("RTX-4090", 330_300, 24, 450, "NVIDIA GeForce RTX 4090"),
        _model("RTX-5090", 419_000, 32, 575, "NVIDIA GeForce RTX 5090"),
        # The openb trace does not disclose G2 and G3. The stand-ins follow the hosts: 8 x G2 beside 96 cores and
        # 384 GiB look like inference cards, 8 x G3 beside 128 cores and 768 GiB like training cards.
        _model("G2", 125_000, 24, 150, stand_in=True),
        _model("G3", 312_000, 80, 400, stand_in=True),
    )
}
"""Every known model by name."""

NVML_NAMES: Final = {nvml: model for model in MODELS.values() for nvml in model.nvml}
"""Every known model by each of the names that the driver has for it."""


_BRANDS: Final = re.compile(r"^(nvidia)?(tesla|geforce|quadro)?")
_BOARDS: Final = ("sxm", "pcie")
_GIGABYTES: Final = re.compile(r"(?<=[0-9])gb")


def _plain(name: str) -> str:
    """Return a name without what people write one way or the other: case, separators, brands, ``GB`` for ``G``."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return _GIGABYTES.sub("g", _BRANDS.sub("", letters)) or letters


def _label(name: str) -> str:
    """Return a name of the driver as node labels write it."""
    return name.lower().replace(" ", "-")


def _by_plain_name() -> dict[str, tuple[GpuModel, ...]]:
    found: dict[str, tuple[GpuModel, ...]] = {}
    for model in MODELS.values():
        for name in {_plain(name) for name in (model.name, *model.nvml, *model.aliases)}:
            found[name] = (*found.get(name, ()), model)
    return found


_PLAIN: Final = _by_plain_name()


@lru_cache(maxsize=1024)
def names(word: str) -> tuple[str, ...]:
    """Return every name that a GPU may be reported under which ``word`` stands for, the word itself first.

    A name of the driver, or a word that says SXM or PCIe, is one variant, although others with the same numbers share its
    entry. A word that is in no catalogue stands for itself: a driver may know models that nobody has listed here.
    """
    plain, label = _plain(word), _label(word)
    models = _PLAIN.get(plain, ())
    exact = tuple(name for name in NVML_NAMES if _label(name) == label)
    if exact:
        return tuple(dict.fromkeys((word, *(NVML_NAMES[name].name for name in exact), *exact)))
    listed = [name for model in models for name in model.nvml]
    boards = [name for name in listed for board in _BOARDS if board in plain and board in _plain(name)]
    return tuple(dict.fromkeys((word, *(model.name for model in models), *(boards or listed))))


def names_with(word: str, others: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return :func:`names` of a word where an operator has listed ``others`` too, each the names of one model."""
    found = dict.fromkeys(names(word))
    for group in others:
        if _plain(word) in map(_plain, group):
            for name in group:
                found |= dict.fromkeys(names(name))
    return tuple(found)


def known(word: str, others: Iterable[tuple[str, ...]] = ()) -> bool:
    """Return whether a word names a model here, or one of those that an operator has listed."""
    return _plain(word) in _PLAIN or any(_plain(word) in map(_plain, group) for group in others)


class UnknownModelError(LookupError):
    """No GPU model of this name is in the catalogue."""


def lookup(name: str) -> GpuModel:
    """Return the model called ``name``.

    Raises:
        UnknownModelError: There is none; the message lists the known names.
    """
    model = MODELS.get(name)
    if model is None:
        raise UnknownModelError(f"GPU model {name!r} is unknown: use one of {', '.join(MODELS)}")
    return model
