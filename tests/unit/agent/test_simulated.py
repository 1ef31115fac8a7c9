"""GPUs that do not exist."""

from pathlib import Path

import pytest

from producers.agent.simulated import DescriptionError, Simulated, describe
from schemas.decision import GpuGrant
from schemas.hardware import GpuLink
from schemas.ledger import Allocation

GIB = 2**30


def test_a_short_description_names_models_of_the_catalogue() -> None:
    source = Simulated(describe("2xA100-80G,1xT4"), "n", list)
    devices = [seen.device for seen in source.hardware().seen]
    assert [(d.index, d.model, d.tflops_milli, d.vram_bytes // GIB) for d in devices] == [
        *((0, "A100-80G", 312_000, 80), (1, "A100-80G", 312_000, 80), (2, "T4", 65_000, 16)),
    ]
    again = Simulated(describe("2xA100-80G,1xT4"), "n", list).hardware()
    other = Simulated(describe("2xA100-80G,1xT4"), "m", list).hardware()
    assert source.hardware() == again
    assert len({seen.device.uuid for seen in (*again.seen, *other.seen)}) == 6
    assert {reading.sample.sm_percent for reading in source.readings()} == {0.0}


def test_a_file_says_how_gpus_are_linked_and_spread(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    file.write_text(
        '{"driver": "550", "gpus": [{"model": "H100", "count": 4, "nvlinks": 18, "numa_nodes": 2}, {"model": "T4"}]}'
    )
    found = Simulated(describe(str(file)), "n", list).hardware()
    assert found.driver == "550"
    assert [seen.device.numa_node for seen in found.seen] == [0, 0, 1, 1, 0]
    assert found.links[:4] == (
        *(GpuLink(0, 1, "node", 18), GpuLink(0, 2, "system", 18)),
        *(GpuLink(0, 3, "system", 18), GpuLink(0, 4, "node", 0)),
    )


def test_gpus_do_what_is_granted_on_them() -> None:
    held: list[Allocation] = []
    source = Simulated(describe("1xA100-80G"), "n", lambda: held)
    (seen,) = source.hardware().seen
    for name in ("a", "b"):
        grant = GpuGrant(uuid=seen.device.uuid, index=0, tflops_milli=156_000, vram_bytes=20 * GIB)
        held.append(Allocation(pod_uid=name, namespace="n", name=name, pool="p", gpus=(grant,)))
    (reading,) = source.readings()
    assert [process.pod_uid for process in reading.processes] == ["a", "b"]
    assert all(27 < process.sm_percent < 48 for process in reading.processes)
    assert all(11 * GIB <= process.vram_bytes <= 19 * GIB for process in reading.processes)
    assert reading.sample.vram_used_bytes == sum(process.vram_bytes for process in reading.processes)
    assert reading == source.readings()[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no <count>x<model>"),
        ("8A100", "'8A100' is no"),
        ("0xT4", "'0xT4' is no"),
        ("8xRTX9", "GPU model 'RTX9' is unknown"),
        ("64xT4,1xT4", "65 on one node: use at most 64"),
        ("nowhere.json", "nowhere.json cannot be read: No such file"),
    ],
)
def test_a_wrong_description_is_refused(text: str, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        describe(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ("{}", "missing required field `gpus`: write it like"),
        ('{"gpus": []}', "length >= 1"),
        ('{"gpus": [{"model": "T4", "count": 0}]}', r"gpus\[0\].count"),
        ('{"gpus": [{"model": "T4", "speed": 3}]}', "unknown field `speed`"),
        ('{"gpus": [{"model": "T5"}]}', "GPU model 'T5' is unknown"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "gpus.json"
    file.write_text(text)
    with pytest.raises(DescriptionError, match=words):
        describe(str(file))
