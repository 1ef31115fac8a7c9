"""The real source against a stand-in library: structures, versions, error codes and abilities as ``pynvml`` meets them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="install the extra `agent`")

from producers.agent.lane import Lane
from producers.agent.nvml.driver import MOST_FAULTS, Driver
from producers.agent.source import Fault, SourceError
from schemas.hardware import GpuLink, MigInstance, PartitionTemplate
from tests.nvml.library import GIB, Scenario, a100_mig, h100s, t4, uuid

Play = Callable[[dict[str, Any]], Scenario]
MIB = 2**20


def test_eight_gpus_behind_switches(play: Play, driver: Driver, tmp_path: Path) -> None:
    play(h100s())
    for i in range(8):
        device = tmp_path / "sys" / "bus" / "pci" / "devices" / f"0000:{0x10 + i:02x}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{i // 4}\n")
    driver.open()
    found = driver.hardware()
    assert (found.driver, found.cuda) == ("550.54.15", "12.4")
    devices = [seen.device for seen in found.seen]
    assert [d.uuid for d in devices] == [uuid(i) for i in range(8)]
    assert [d.index for d in devices] == list(range(8))
    assert [d.numa_node for d in devices] == [0] * 4 + [1] * 4
    first = devices[0]
    assert (first.model, first.tflops_milli, first.estimated) == ("NVIDIA H100 80GB HBM3", 989_400, False)
    assert (first.vram_bytes, first.pci, first.compute_capability) == (80 * GIB, "00000000:10:00.0", "9.0")
    assert (first.nvlink_mbps, first.ecc, first.persistence, first.mode) == (18 * 26_562, True, True, "hami-core")
    assert len(found.links) == 28
    assert found.links[0] == GpuLink(0, 1, "node", 18)
    assert GpuLink(3, 4, "system", 18) in found.links
    assert {seen.symptoms for seen in found.seen} == {()}
    assert {seen.reset_wanted for seen in found.seen} == {False}


def test_readings_have_rates_processes_and_reasons(play: Play, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    world = play(h100s(2))
    world.gpus[1]["processes"] = [
        {"pid": 11, "memory": 3 * GIB, "sm": 40},
        {"pid": 12, "memory": GIB, "kind": "M"},
        {"pid": 13, "memory": MIB, "kind": "G"},
    ]
    world.write()
    driver.open()
    driver.readings()
    clock[0] += 2.0
    world.gpus[1]["fields"] |= {"197": 3000, "198": 5000, "138": 10, "139": 20}
    world.write()
    idle, busy = driver.readings()
    assert (idle.processes, idle.sample.pcie_rx_bytes) == ((), 0)
    sample = busy.sample
    assert (sample.sm_percent, sample.memory_percent, sample.vram_used_bytes) == (10.0, 5.0, GIB)
    assert (sample.temperature_c, sample.power_mw, sample.throttle) == (41, 120_001, ("SwPowerCap",))
    assert (sample.graphics_clock_mhz, sample.memory_clock_mhz, sample.video_clock_mhz) == (1980, 2619, 1545)
    assert (sample.pcie_tx_bytes, sample.pcie_rx_bytes) == (1500, 2500)
    assert (sample.nvlink_tx_bytes, sample.nvlink_rx_bytes) == (5 * 1024, 10 * 1024)
    assert {(p.pid, p.vram_bytes, p.sm_percent, p.compute) for p in busy.processes} == {
        (11, 3 * GIB, 40.0, True),
        (12, GIB, 0.0, True),
        (13, MIB, 0.0, False),
    }


def test_a_gpu_that_is_cut_tells_its_parts_and_what_it_can_be_cut_into(play: Play, driver: Driver) -> None:
    world = play(a100_mig())
    # NVML tells of a process on a MIG device through the device's own handle.
    world.gpus[0]["processes"] = [{"pid": 21, "memory": GIB, "gi": 7, "ci": 0}]
    world.write()
    driver.open()
    found = driver.hardware()
    cut, whole = (seen.device for seen in found.seen)
    assert (cut.mode, whole.mode, whole.instances) == ("mig", "hami-core", ())
    assert cut.instances[1] == MigInstance(
        uuid="MIG-00000002-0000-4000-8000-000000000000",
        profile="1g.10gb",
        gpu_instance=7,
        compute_instance=0,
        start=4,
        slots=1,
        vram_bytes=9 * GIB,
    )
    assert [template.id for template in found.partitions] == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert found.partitions[2] == PartitionTemplate(
        id="3g.40gb",
        model="NVIDIA A100-SXM4-80GB",
        vram_bytes=40_192 * MIB,
        compute_milli=428,
        slots=4,
        starts=(0, 4),
        most=2,
    )
    assert found.links == (GpuLink(0, 1, "single", 12),)
    assert found.seen[0].reset_wanted is None
    reading, _ = driver.readings()
    assert (reading.sample.sm_percent, reading.sample.pcie_rx_bytes) == (0.0, 700_000)
    (process,) = reading.processes
    assert (process.pid, process.instance) == (21, "MIG-00000002-0000-4000-8000-000000000000")


def test_a_gpu_that_can_do_little_is_as_good_as_any(play: Play, driver: Driver) -> None:
    play(t4())
    driver.open()
    (seen,) = driver.hardware().seen
    assert (seen.device.model, seen.device.tflops_milli, seen.device.ecc, seen.device.persistence) == (
        *("Tesla T4", 65_000),
        *(None, None),
    )
    assert (seen.symptoms, seen.reset_wanted, seen.device.nvlink_mbps) == ((), None, 0)
    (reading,) = driver.readings()
    assert (reading.sample.temperature_c, reading.sample.power_mw, reading.symptoms) == (35, 0, ())
    assert driver.faults() == ()


def test_an_unknown_model_is_counted_by_its_cores_and_says_so(
    play: Play, lane: Lane, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    world = play(t4())
    world.gpus[0] |= {"name": "NVIDIA X900", "cores": 10_000, "max_clocks": [0, 2000]}
    world.write()
    driver.open()
    (seen,) = driver.hardware().seen
    assert (seen.device.tflops_milli, seen.device.estimated) == (40_000, True)
    assert (
        "'NVIDIA X900' is not in the catalogue: counted as 40.000 TFLOPS, from 10000 cores at 2000 MHz" in caplog.text
    )
    known = Driver(lane, tflops_milli={"NVIDIA X900": 123_456})
    known.open()
    assert [(s.device.tflops_milli, s.device.estimated) for s in known.hardware().seen] == [(123_456, False)]
    known.close()


@pytest.mark.parametrize(
    ("change", "problem", "words"),
    [
        ({"remapped": [1, 1, 1, 0]}, "RowRemap", "waits to be remapped"),
        ({"remapped": [1, 1, 0, 1]}, "RowRemap", "is to be replaced"),
        ({"remapped": None, "pages_pending": 1}, "RowRemap", "page waits"),
        ({"remapped": None, "uncorrected": 3}, "EccErrors", "3 uncorrectable"),
        ({"remapped": [0, 9, 0, 0], "uncorrected": 3}, None, ""),  # contained: the row was remapped
        ({"fields": {"230": 1}}, "RecoveryRequired", "reset the GPU"),
        ({"fields": {"230": 9}}, "RecoveryRequired", "recovery action 9"),
    ],
)
def test_symptoms(play: Play, driver: Driver, change: dict[str, Any], problem: str | None, words: str) -> None:
    world = play(h100s(1))
    world.gpus[0] |= change
    world.write()
    driver.open()
    (seen,) = driver.hardware().seen
    assert [symptom.problem for symptom in seen.symptoms] == ([problem] if problem else [])
    assert all(words in symptom.detail for symptom in seen.symptoms)


def test_readings_that_cannot_be_true_are_symptoms(play: Play, driver: Driver) -> None:
    world = play(h100s(1))
    driver.open()
    world.gpus[0]["memory"]["used"] = 90 * GIB
    world.write()
    assert [s.problem for s in driver.readings()[0].symptoms] == ["InvalidReading"]


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_go_on(play: Play, driver: Driver) -> None:
    world = play(h100s(3))
    driver.open()
    world.gpus[1]["lost"] = True
    world.write()
    assert [reading.sample.absent for reading in driver.readings()] == [False, True, False]
    seen = driver.hardware().seen
    assert [s.problem for s in seen[1].symptoms] == ["Lost"]
    assert "GPU is lost" in seen[1].symptoms[0].detail
    assert [seen[0].symptoms, seen[2].symptoms] == [(), ()]
    driver.open()
    assert [s.device.uuid for s in driver.hardware().seen] == [uuid(0), uuid(2)]


def test_xids_are_taken_in_order_and_a_storm_in_portions(play: Play, driver: Driver) -> None:
    world = play(h100s(2))
    driver.open()
    assert driver.faults() == ()
    world.fault(1, 79)
    world.fault(0, 31)
    assert driver.faults() == (Fault(uuid(1), 79), Fault(uuid(0), 31))
    world.fault(0, 63, times=MOST_FAULTS + 10)
    assert [len(driver.faults()) for _ in range(3)] == [MOST_FAULTS, 10, 0]


def test_a_driver_that_restarts_is_gone_until_it_is_opened_again(play: Play, driver: Driver) -> None:
    world = play(h100s(2))
    driver.open()
    world.world |= {"generation": 2, "init": 9}
    world.write()
    for ask in (driver.hardware, driver.readings, driver.faults):
        with pytest.raises(SourceError, match="Driver Not Loaded"):
            ask()
    with pytest.raises(SourceError, match="nvmlInit: Driver Not Loaded"):
        driver.open()
    world.world |= {"init": 0, "driver": "560.1"}
    world.write()
    driver.open()
    assert (driver.hardware().driver, len(driver.readings())) == ("560.1", 2)
