"""The catalogue of GPU models."""

import pytest

from producers.simulator.openb import NODE_KINDS
from schemas.catalogue import MODELS, NVML_NAMES, UnknownModelError, lookup


def test_knows_every_model_of_the_published_cluster() -> None:
    assert {kind.model for kind in NODE_KINDS} <= set(MODELS)


def test_states_amounts_in_thousandths_and_bytes() -> None:
    card = lookup("P100")
    assert (card.tflops_milli, card.vram_bytes, card.power_mw) == (18_700, 16 * 2**30, 250_000)


def test_says_which_numbers_are_invented() -> None:
    assert {model.name for model in MODELS.values() if model.stand_in} == {"G2", "G3"}


def test_refuses_an_unknown_model() -> None:
    with pytest.raises(UnknownModelError, match=r"GPU model 'RTX9' is unknown: use one of T4, P100, .*G3"):
        lookup("RTX9")


def test_every_name_that_the_driver_uses_belongs_to_one_model() -> None:
    names = [nvml for model in MODELS.values() for nvml in model.nvml]
    assert len(names) == len(set(names))
    assert NVML_NAMES["NVIDIA A100-SXM4-80GB"] is MODELS["A100-80G"]
