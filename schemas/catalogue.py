"""GPU models and what one device of each can do: the numbers that neither a trace nor the driver tells.

Compute is dense FP16 throughput with tensor cores where the model has them, as vendors state it.
"""

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
        stand_in: Whether the numbers are invented, because the publisher keeps the model secret.
    """

    name: str
    tflops_milli: int
    vram_bytes: int
    power_mw: int
    nvml: tuple[str, ...] = ()
    stand_in: bool = False


def _model(name: str, tflops_milli: int, vram_gib: int, power_w: int, *nvml: str, stand_in: bool = False) -> GpuModel:
    return GpuModel(
        name=name,
        tflops_milli=tflops_milli,
        vram_bytes=vram_gib * GIB,
        power_mw=power_w * 1000,
        nvml=nvml,
        stand_in=stand_in,
    )


MODELS: Final = {
    model.name: model
    for model in (
        # NVIDIA data sheets of each product, the row "FP16 Tensor Core" without sparsity.
        _model("T4", 65_000, 16, 70, "Tesla T4", "NVIDIA T4"),
        _model("P100", 18_700, 16, 250, "Tesla P100-PCIE-16GB", "Tesla P100-PCIE-12GB"),
        _model("V100M16", 125_000, 16, 300, "Tesla V100-SXM2-16GB"),
        _model("V100M32", 125_000, 32, 300, "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB"),
        _model("P100-SXM2", 21_200, 16, 300, "Tesla P100-SXM2-16GB"),
        _model("V100-PCIE", 112_000, 32, 250, "Tesla V100-PCIE-32GB", "Tesla V100-PCIE-16GB"),
        _model("A2", 18_000, 16, 60, "NVIDIA A2"),
        _model("A10", 125_000, 24, 150, "NVIDIA A10"),
        _model("A10G", 70_000, 24, 300, "NVIDIA A10G"),
        _model("A16", 17_900, 16, 250, "NVIDIA A16"),
        _model("A30", 165_000, 24, 165, "NVIDIA A30"),
        _model("A40", 149_700, 48, 300, "NVIDIA A40"),
        _model("A100-40G", 312_000, 40, 400, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        _model("A100-80G", 312_000, 80, 400, "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
        _model("A800-80G", 312_000, 80, 400, "NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe"),
        _model("L4", 121_000, 24, 72, "NVIDIA L4"),
        _model("L20", 119_500, 48, 275, "NVIDIA L20"),
        _model("L40", 181_000, 48, 300, "NVIDIA L40"),
        _model("L40S", 362_000, 48, 350, "NVIDIA L40S"),
        _model("H20", 148_000, 96, 400, "NVIDIA H20"),
        _model("H100", 989_400, 80, 700, "NVIDIA H100 80GB HBM3"),
        _model("H100-PCIE", 756_000, 80, 350, "NVIDIA H100 PCIe"),
        _model("H100-NVL", 835_500, 94, 400, "NVIDIA H100 NVL"),
        _model("H800", 989_400, 80, 700, "NVIDIA H800", "NVIDIA H800 80GB HBM3"),
        _model("H200", 989_400, 141, 700, "NVIDIA H200"),
        _model("H200-NVL", 835_500, 141, 600, "NVIDIA H200 NVL"),
        _model("GH200", 989_400, 96, 900, "NVIDIA GH200 480GB"),
        _model("B200", 2_250_000, 180, 1000, "NVIDIA B200"),
        _model("RTX-A6000", 154_800, 48, 300, "NVIDIA RTX A6000"),
        _model("RTX-6000-ADA", 364_200, 48, 300, "NVIDIA RTX 6000 Ada Generation"),
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
