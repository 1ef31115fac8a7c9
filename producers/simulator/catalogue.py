"""GPU models and what one device of each can do: the numbers that a trace leaves out.

Compute is dense FP16 throughput with tensor cores where the model has them, as vendors state it.
"""

from typing import Final

import msgspec

GIB: Final = 2**30


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of GPU.

    Attributes:
        name: The name that traces and inventories use.
        tflops_milli: Physical FP16 compute in thousandths of a TFLOPS.
        vram_bytes: Physical VRAM, the nominal size.
        power_mw: Board power limit in milliwatts.
        stand_in: Whether the numbers are invented, because the publisher keeps the model secret.
    """

    name: str
    tflops_milli: int
    vram_bytes: int
    power_mw: int
    stand_in: bool = False


def _model(name: str, tflops_milli: int, vram_gib: int, power_w: int, *, stand_in: bool = False) -> GpuModel:
    return GpuModel(
        name=name,
        tflops_milli=tflops_milli,
        vram_bytes=vram_gib * GIB,
        power_mw=power_w * 1000,
        stand_in=stand_in,
    )


MODELS: Final = {
    model.name: model
    for model in (
        # NVIDIA data sheets: T4 (2018), P100 PCIe (2016), V100 SXM2 (2017), A10 (2021), A100 (2020), H100 SXM (2022).
        _model("T4", 65_000, 16, 70),
        _model("P100", 18_700, 16, 250),
        _model("V100M16", 125_000, 16, 300),
        _model("V100M32", 125_000, 32, 300),
        _model("A10", 125_000, 24, 150),
        _model("A100-40G", 312_000, 40, 400),
        _model("A100-80G", 312_000, 80, 400),
        _model("H100", 989_400, 80, 700),
        # The openb trace does not disclose G2 and G3. The stand-ins follow the hosts: 8 x G2 beside 96 cores and
        # 384 GiB look like inference cards, 8 x G3 beside 128 cores and 768 GiB like training cards.
        _model("G2", 125_000, 24, 150, stand_in=True),
        _model("G3", 312_000, 80, 400, stand_in=True),
    )
}
"""Every known model by name."""


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
