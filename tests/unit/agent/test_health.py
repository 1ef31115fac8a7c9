"""What makes a GPU unhealthy, and what makes it healthy again."""

from datetime import UTC, datetime, timedelta

import msgspec

from producers.agent.health import Health
from producers.agent.source import Fault, Hardware, Reading, Seen, Symptom
from schemas.cluster import GpuDevice, GpuInventory
from schemas.hardware import GpuLink
from schemas.usage import GpuSample

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seen(number: int, *symptoms: Symptom, reset: bool | None = False, index: int | None = None) -> Seen:
    device = GpuDevice(
        uuid=f"GPU-{number}", index=number if index is None else index, model="m", tflops_milli=1, vram_bytes=1
    )
    return Seen(device, symptoms, reset)


def said(health: Health, seconds: float = 0.0) -> GpuInventory:
    return health.inventory("n", at(seconds), used_by={}, valid_s=15)


def problems(health: Health) -> list[list[str]]:
    return [[trouble.problem for trouble in gpu.troubles] for gpu in said(health).gpus]


def test_an_xid_counts_until_the_driver_wants_no_recovery_for_a_while() -> None:
    health = Health(xid_settle_s=10)
    health.look(Hardware((seen(0), seen(1))), at(0))
    health.fault(Fault("GPU-1", 79), at(1))
    health.fault(Fault("GPU-1", 79), at(5))
    (_, sick) = said(health).gpus
    assert (sick.healthy, sick.troubles[0].xid, sick.troubles[0].since) == (False, 79, at(1))
    assert sick.troubles[0].detail == "XID 79: GPU has fallen off the bus"
    health.look(Hardware((seen(0), seen(1))), at(14))
    assert health.healthy() == {"GPU-0": True, "GPU-1": False}
    health.look(Hardware((seen(0), seen(1, Symptom("RecoveryRequired", "x"), reset=True))), at(100))
    assert problems(health) == [[], ["Xid", "RecoveryRequired"]]
    health.look(Hardware((seen(0), seen(1))), at(101))
    assert problems(health) == [[], []]


def test_a_driver_that_cannot_tell_is_believed_after_a_quiet_time_only() -> None:
    health = Health(xid_settle_s=10, xid_quiet_s=100)
    health.look(Hardware((seen(0, reset=None),)), at(0))
    health.fault(Fault("GPU-0", 95), at(0))
    for seconds, ok in ((50, False), (99, False), (100, True)):
        health.look(Hardware((seen(0, reset=None),)), at(seconds))
        assert health.healthy() == {"GPU-0": ok}


def test_errors_of_applications_are_counted_and_nothing_else() -> None:
    health = Health()
    health.look(Hardware((seen(0),)), at(0))
    for xid in (13, 31, 43, 45, 68, 109):
        health.fault(Fault("GPU-0", xid), at(1))
    assert (health.xids, health.healthy()) == (6, {"GPU-0": True})
    health.fault(Fault("", 119), at(2))  # of no GPU in particular: of all
    assert health.healthy() == {"GPU-0": False}


def test_a_gpu_that_is_gone_stays_listed_as_lost_with_its_index_until_it_answers() -> None:
    health = Health()
    health.look(Hardware((seen(0), seen(1), seen(2)), (GpuLink(0, 1, "node", 4), GpuLink(1, 2, "node", 4))), at(0))
    lost = Symptom("Lost", "GPU is lost")
    health.read([Reading(GpuSample(uuid="GPU-0", absent=True), symptoms=(lost,))], at(1))
    assert problems(health) == [["Lost"], [], []]
    health.look(Hardware((seen(1, index=0), seen(2, index=1)), (GpuLink(0, 1, "node", 4),)), at(2))
    inventory = said(health)
    assert [(gpu.uuid, gpu.index, gpu.healthy) for gpu in inventory.gpus] == [
        *(("GPU-0", 0, False), ("GPU-1", 1, True), ("GPU-2", 2, True)),
    ]
    assert inventory.links == (GpuLink(1, 2, "node", 4),)
    health.look(Hardware((seen(0), seen(1), seen(2), seen(9, index=1))), at(3))
    assert [(gpu.uuid, gpu.index, gpu.healthy) for gpu in said(health).gpus][-1] == ("GPU-9", 3, True)
    assert problems(health) == [[], [], [], []]


def test_a_failing_driver_takes_every_gpu_and_gives_them_back() -> None:
    health = Health()
    health.look(Hardware((seen(0), seen(1))), at(0))
    health.fail("DriverHung", "nvmlDeviceGetName has not returned for 3.0 s", at(1))
    assert problems(health) == [["DriverHung"], ["DriverHung"]]
    health.look(Hardware((seen(0),)), at(2))
    assert problems(health) == [[], ["DriverHung", "Lost"]]


def test_a_restart_of_the_agent_cures_nothing() -> None:
    health = Health()
    health.look(Hardware((seen(0, reset=None), seen(1))), at(0))
    health.fault(Fault("GPU-0", 79), at(1))
    before = said(health, 2)
    encoded = msgspec.json.encode(before)
    again = Health(xid_quiet_s=100)
    again.restore(msgspec.json.decode(encoded, type=GpuInventory))
    again.look(Hardware((seen(0, reset=None),)), at(5))
    assert problems(again) == [["Xid"], ["Lost"]]
    assert said(again).gpus[0].troubles == before.gpus[0].troubles
    again.look(Hardware((seen(0, reset=None), seen(1))), at(102))
    assert problems(again) == [[], []]


def test_a_gpu_that_was_replaced_is_forgotten_at_the_next_start_once_no_pod_holds_it() -> None:
    before = Health()
    before.look(Hardware((seen(0), seen(1))), at(0))
    again = Health()
    again.restore(said(before))
    again.forget_replaced({"GPU-0", "GPU-1"})
    again.look(Hardware((seen(0), seen(2, index=1)), (GpuLink(0, 1, "node", 4),)), at(1))
    again.forget_replaced({"GPU-1"})
    assert again.healthy() == {"GPU-0": True, "GPU-1": False, "GPU-2": True}
    again.forget_replaced(set())
    assert again.healthy() == {"GPU-0": True, "GPU-2": True}
    assert said(again).links == (GpuLink(0, 1, "node", 4),)
    again.look(Hardware((seen(0),)), at(2))
    again.forget_replaced(set())  # lost while we look: not replaced
    assert again.healthy() == {"GPU-0": True, "GPU-2": False}


def test_a_missing_mps_server_is_the_trouble_of_gpus_that_are_shared_by_it() -> None:
    health = Health()
    cut = seen(0)._replace(device=msgspec.structs.replace(seen(0).device, mode="mig"))
    shared = seen(1)._replace(device=msgspec.structs.replace(seen(1).device, mode="mps"))
    health.look(Hardware((cut, shared)), at(0))
    health.fail("MpsDown", "x", at(0), mode="mps")
    assert health.healthy() == {"GPU-0": True, "GPU-1": False}
    health.heal("MpsDown")
    assert health.healthy() == {"GPU-0": True, "GPU-1": True}
