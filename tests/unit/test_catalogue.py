"""The catalogue of GPU models."""

import pytest

from producers.simulator.openb import NODE_KINDS
from schemas.catalogue import MODELS, NVML_NAMES, UnknownModelError, known, lookup, names, names_with


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


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("word", ["H100", "h100", "H100_SXM", "NVIDIA-H100-80GB-HBM3", H100, "H100-80G", "NVIDIA H100"])
def test_people_and_drivers_mean_the_same_gpu(word: str) -> None:
    assert H100 in names(word)
    assert names(word)[0] == word
    assert known(word)


def test_a_word_names_what_it_says_and_no_more() -> None:
    assert set(names("A100")) >= {"NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "A100-40G", "A100-80G"}
    assert names("A100_SXM_80G")[1:] == ("A100-80G", "NVIDIA A100-SXM4-80GB")
    assert names("NVIDIA-A100-SXM4-40GB")[1:] == ("A100-40G", "NVIDIA A100-SXM4-40GB")
    assert names("H100_PCIe")[1:] == ("H100-PCIE", "NVIDIA H100 PCIe")
    assert "NVIDIA A10G" not in names("A10")
    assert "NVIDIA L40S" not in names("L40")
    assert names("RTX4090")[-1] == "NVIDIA GeForce RTX 4090"
    assert names("Tesla-T4")[1:] == ("T4", "Tesla T4")
    assert names("T4")[1:] == ("Tesla T4", "NVIDIA T4")
    assert names("Quantum 1") == ("Quantum 1",)
    assert not known("Quantum 1")


def test_what_an_operator_lists_has_all_its_names() -> None:
    listed = (("Q1", "NVIDIA Quantum 1"), ("MyH100", H100))
    assert names_with("q-1", listed) == ("q-1", "Q1", "NVIDIA Quantum 1")
    assert set(names_with("MyH100", listed)) == {"MyH100", H100, "H100"}
    assert known("NVIDIA-Quantum-1", listed)


def test_no_two_models_share_a_name_of_the_driver_in_any_spelling() -> None:
    for model in MODELS.values():
        for nvml in model.nvml:
            assert [name for name in names(nvml) if name in MODELS] == [model.name], nvml
