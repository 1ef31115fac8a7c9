"""From processes to pods and containers, and from there to what the ledger does not explain."""

from datetime import UTC, datetime
from pathlib import Path

from producers.agent.accounting import Books, account
from producers.agent.cgroups import Owner
from producers.agent.drift import HandedOut, Verdict, Watch
from producers.agent.processes import NOBODY, Processes
from producers.agent.source import Process, Reading
from schemas.decision import GpuGrant
from schemas.ledger import Allocation
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

AT = datetime(2026, 1, 1, tzinfo=UTC)
POD = "2c48913c-b29f-41e7-9350-020968147796"
OTHER = "11111111-2222-4333-8444-555555555555"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
GIB = 2**30


def run(proc: Path, pid: int, cgroup: str, *, started: int = 5, command: str = "python3") -> None:
    directory = proc / str(pid)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup").write_text(f"0::{cgroup}\n")
    (directory / "stat").write_text(f"{pid} ({command}) S {' '.join(['0'] * 18)} {started} 0\n")


def test_processes_are_known_by_number_and_start_and_containers_by_their_logs(tmp_path: Path) -> None:
    proc, logs = tmp_path / "proc", tmp_path / "containers"
    run(proc, 7, f"/kubepods/pod{POD}/{ID}", command="a) (b")
    processes = Processes(proc, logs)
    assert processes.owner(7) == Owner(POD, ID)
    assert processes.command(7) == "a) (b"
    assert processes.owner(8) == NOBODY
    (proc / "7" / "cgroup").unlink()
    processes.forget_all_but({7})
    assert processes.owner(7) == Owner(POD, ID)  # its cgroup is read once
    run(proc, 7, f"/kubepods/pod{OTHER}/{ID}", started=6)
    processes.forget_all_but({7})
    assert processes.owner(7) == Owner(OTHER, ID)  # another one with the number of the first
    assert processes.name(ID) is None
    logs.mkdir()
    (logs / f"train-0_ml_main-gpu-{ID}.log").touch()
    assert processes.name(ID) is None  # the directory is not read at every sample
    processes.look_again()
    name = processes.name(ID)
    assert name is not None
    assert (name.namespace, name.pod, name.container) == ("ml", "train-0", "main-gpu")


def test_use_is_counted_per_container_and_instance() -> None:
    owners = {1: Owner(POD, "c1"), 2: Owner(POD, "c1"), 3: Owner(POD, "c2"), 4: Owner(OTHER), 5: NOBODY, 6: NOBODY}
    books = Books(
        lambda pid: owners.get(pid, NOBODY), lambda container: "main" if container == "c1" else "", lambda pid: pid == 6
    )
    readings = [
        Reading(
            GpuSample(uuid="GPU-0", sm_percent=90),
            (
                Process(1, 10, 60.0),
                Process(2, 5, 70.0),
                Process(3, 1, 30.0),
                Process(4, 2, 0.0, "MIG-1"),
                Process(5, 4, 0.0),
                Process(6, 8, 0.0),  # a monitor
                Process(7, 16, 0.0, compute=False),  # a display server
            ),
        ),
        Reading(GpuSample(uuid="GPU-1", absent=True)),
    ]
    first, second = account("n", readings, AT, books=books, managed={POD}).gpus
    assert second == GpuSample(uuid="GPU-1", absent=True)
    assert (first.sm_percent, first.processes) == (
        90,
        (
            ProcessUsage(pod_uid="", vram_bytes=4, pids=1, foreign=True),
            ProcessUsage(pod_uid=OTHER, vram_bytes=2, instance="MIG-1", pids=1, foreign=True),
            ProcessUsage(pod_uid=POD, vram_bytes=15, sm_percent=76.9, container="main", container_id="c1", pids=2),
            ProcessUsage(pod_uid=POD, vram_bytes=1, sm_percent=23.1, container_id="c2", pids=1),
        ),
    )


def holds(*uuids: str, uid: str = POD, vram: int = GIB) -> dict[str, Allocation]:
    grants = tuple(GpuGrant(uuid=uuid, index=0, tflops_milli=1, vram_bytes=vram) for uuid in uuids)
    return {uid: Allocation(pod_uid=uid, namespace="ml", name="train", pool="p", gpus=grants)}


def uses(uuid: str, *pods: tuple[str, int]) -> NodeUsage:
    processes = tuple(ProcessUsage(pod_uid=uid, vram_bytes=vram) for uid, vram in pods)
    return NodeUsage(node="n", at=AT, gpus=(GpuSample(uuid=uuid, processes=processes),))


KNOWN = {"GPU-0": "m", "GPU-1": "m"}


class Looks:
    def __init__(self) -> None:
        self.watch = Watch("n")

    def look(
        self,
        usage: NodeUsage,
        held: dict[str, Allocation],
        *handed_out: HandedOut,
        limits: dict[str, int] | None = None,
    ) -> Verdict:
        return self.watch.look(usage, held, handed_out, AT, known=KNOWN, limits=limits or {})


def told(verdict: Verdict) -> list[tuple[str, str, str, bool]]:
    return [(drift.kind, drift.gpu, drift.pod_uid, drift.resolved) for drift in verdict.news]


def test_what_the_ledger_explains_is_no_drift() -> None:
    looks = Looks()
    for _ in range(3):
        assert looks.look(uses("GPU-0", (POD, GIB)), holds("GPU-0")) == Verdict({}, ())


def test_strangers_count_when_they_stay_and_are_over_when_they_stay_away() -> None:
    looks = Looks()
    strange, quiet = uses("GPU-0", (OTHER, 7)), uses("GPU-0")
    assert looks.look(strange, {}) == Verdict({}, ())
    assert looks.look(quiet, {}) == Verdict({}, ())
    assert looks.look(strange, {}) == Verdict({}, ())
    verdict = looks.look(strange, {})
    assert verdict.used_by == {"GPU-0": f"pod {OTHER}"}
    assert told(verdict) == [("UnmanagedUse", "GPU-0", OTHER, False)]
    assert looks.look(quiet, {}) == Verdict({"GPU-0": f"pod {OTHER}"}, ())
    assert told(looks.look(quiet, {})) == [("UnmanagedUse", "GPU-0", OTHER, True)]
    looks.look(uses("GPU-1", ("", 7)), {})
    assert looks.look(uses("GPU-1", ("", 7)), {}).used_by == {"GPU-1": "processes of the host"}


def test_pods_on_the_wrong_gpu_or_over_their_limit_show_both_values() -> None:
    looks = Looks()
    held = holds("GPU-1")
    looks.look(uses("GPU-0", (POD, 5)), held)
    (wrong,) = looks.look(uses("GPU-0", (POD, 5)), held).news
    assert (wrong.kind, wrong.ledger) == ("WrongGpu", "pod ml/train holds GPU-1")
    assert wrong.observed == f"pod {POD} use 5 bytes of its VRAM"
    looks = Looks()
    for limits, news in (({POD: 3 * GIB}, []), ({}, [("OverLimit", "GPU-1", POD, False)])):
        looks.look(uses("GPU-1", (POD, 2 * GIB)), held, limits=limits)
        assert told(looks.look(uses("GPU-1", (POD, 2 * GIB)), held, limits=limits)) == news


def test_what_other_allocators_hand_out_counts_at_once_unless_it_is_ours() -> None:
    looks = Looks()
    given = HandedOut("ml", "notebook", "main", "nvidia-device-plugin", "GPU-0")
    verdict = looks.look(uses("GPU-0", (OTHER, 7)), holds("GPU-0"), given)
    assert verdict.used_by == {"GPU-0": "nvidia-device-plugin"}
    (drift,) = verdict.news
    assert (drift.kind, drift.ledger) == ("ForeignAllocation", "pods ml/train hold it")
    assert drift.observed == "nvidia-device-plugin gave it to pod ml/notebook, container main"
    assert looks.look(uses("GPU-0", (OTHER, 7)), holds("GPU-0"), given).news == ()  # it explains the process too
    assert told(looks.look(uses("GPU-0"), holds("GPU-0"))) == [("ForeignAllocation", "GPU-0", "", True)]
    ours = HandedOut("ml", "train", "main", "nvidia-device-plugin", "GPU-0")
    assert Looks().look(uses("GPU-0"), holds("GPU-0"), ours) == Verdict({}, ())


def test_a_pod_that_holds_a_gpu_that_is_not_there_is_reported() -> None:
    assert told(Looks().look(uses("GPU-0"), holds("GPU-9"))) == [("MissingGpu", "GPU-9", POD, False)]
