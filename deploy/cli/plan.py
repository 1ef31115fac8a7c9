"""``gpubus plan``: how many GPUs a workload needs, and what to give the allocators of such a cluster.

The amount follows the capacity formula of the HAMi production guide: the VRAM of all pods over what of a GPU is to be used.
But a pod's VRAM lies on one GPU, and four pods of 30 GB do not fit two GPUs of 64. So the plan packs the pods as well,
largest first, and says how many GPUs that takes.
"""

import re
from collections import Counter
from fractions import Fraction
from typing import Annotated, Final

import msgspec
import typer

from deploy.cli.connect import JsonOption, run
from deploy.cli.errors import InputError
from deploy.cli.output import gib, make_console, print_json, show_fields
from deploy.cli.plan_history import check_risk, from_history, show
from schemas.quantity import QuantityError, format_bytes, parse_bytes

MOST_PODS: Final = 1_000_000
_KIND: Final = re.compile(r"([0-9]{1,9})x(\S+)")
_SHARE: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?")


class Size(msgspec.Struct, frozen=True):
    """A row of the guide's sizing table: up to so many nodes and GPUs, what one allocator is to be given."""

    name: str
    nodes: int
    gpus: int
    cpu: str
    memory: str


SIZES: Final = (
    Size("small", 9, 19, "500m", "512Mi"),
    Size("medium", 50, 100, "1", "1Gi"),
    Size("large", 200, 500, "2", "2Gi"),
)
LARGEST: Final = Size("very large", 0, 0, "4", "4Gi")
"""Whatever is beyond the last row."""


class Kind(msgspec.Struct, frozen=True):
    """So many pods that need so much VRAM each, on one GPU."""

    pods: int
    vram_bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What pods take.

    Attributes:
        gpus: GPUs by the formula, rounded up.
        gpus_packed: GPUs that hold the pods, each pod on one; never fewer than ``gpus``.
        usable_bytes: What of a GPU's VRAM is to be used.
        nodes: Nodes with ``gpus_packed`` GPUs.
        size: Class of such a cluster by the sizing table; ``allocator_cpu`` and ``allocator_memory`` are its requests.
    """

    gpus: int
    gpus_packed: int
    pods: int
    vram_bytes: int
    usable_bytes: int
    nodes: int
    size: str
    allocator_cpu: str
    allocator_memory: str


def plan(
    *,
    pods: Annotated[int | None, typer.Option("--pods", metavar="N", help="Pods of one kind.", min=1)] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="AMOUNT", help="VRAM that each of them needs, such as 4G or 4Gi.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", metavar="NxAMOUNT", help="A further kind of pods: 20x24G; repeatable.")
    ] = None,
    gpu_memory: Annotated[str, typer.Option("--gpu-memory", metavar="AMOUNT", help="VRAM of one GPU.")] = "80G",
    utilization: Annotated[
        str, typer.Option("--utilization", metavar="SHARE", help="What of a GPU's VRAM is to be used, up to 1.")
    ] = "0.8",
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", metavar="N", min=1, max=64, help="GPUs of a node.")
    ] = 8,
    history: Annotated[
        str | None,
        typer.Option(
            "--from-history",
            metavar="POOL",
            help="Say instead which oversell ratio the past of a pool would have borne.",
        ),
    ] = None,
    days: Annotated[float, typer.Option("--days", min=0.01, max=366, help="How much of the past.")] = 7.0,
    risk: Annotated[float, typer.Option("--risk", help="Part of all minutes that may be overloaded.")] = 0.01,
    as_json: JsonOption = False,
) -> None:
    """Say how many GPUs pods need, and what to give the allocators of such a cluster.

    \b
    Examples:
      gpubus plan --pods 100 --memory 4G --gpu-memory 80G --utilization 0.8
      gpubus plan --kind 100x4G --kind 8x40G --gpus-per-node 4 --json
      GPUBUS_METRICS=greptime://HOST:4000/public gpubus plan --from-history shared --days 7 --risk 0.01
    """
    if history is not None:
        if pods is not None or memory is not None or kinds:
            raise InputError("--from-history looks at the pods that there were: drop --pods, --memory and --kind")
        check_risk(risk)
        show(run(from_history(history, days, risk)), history, days, risk, as_json=as_json)
        return
    found = work_out(
        _kinds(pods, memory, kinds or []), _amount("--gpu-memory", gpu_memory), _share(utilization), gpus_per_node
    )
    if as_json:
        print_json(found)
        return
    show_fields(
        make_console(),
        [
            ("pods", f"{found.pods}, {gib(found.vram_bytes)} GiB of VRAM together"),
            ("GPUs", f"{found.gpus}, of each {gib(found.usable_bytes)} GiB"),
            ("GPUs, each pod on one", found.gpus_packed),
            ("nodes", found.nodes),
            ("cluster", found.size),
            ("each allocator", f"{found.allocator_cpu} CPU, {found.allocator_memory} memory"),
        ],
    )


def work_out(kinds: list[Kind], gpu_bytes: int, share: Fraction, gpus_per_node: int) -> Plan:
    """Return what pods take of GPUs of which ``share`` is to be used.

    Raises:
        InputError: A pod needs more than that of one GPU.
    """
    usable = int(gpu_bytes * share)
    for kind in kinds:
        if kind.vram_bytes > usable:
            raise InputError(
                f"a pod with {format_bytes(kind.vram_bytes)} of VRAM does not fit a GPU of which {format_bytes(usable)} "
                "are to be used: plan for larger GPUs, a higher --utilization, or pods with several GPUs"
            )
    total = sum(kind.pods * kind.vram_bytes for kind in kinds)
    gpus = -(-total // usable)
    packed = max(gpus, _packed(kinds, usable))
    nodes = -(-packed // gpus_per_node)
    size = next((size for size in SIZES if nodes <= size.nodes and packed <= size.gpus), LARGEST)
    return Plan(
        gpus=gpus,
        gpus_packed=packed,
        pods=sum(kind.pods for kind in kinds),
        vram_bytes=total,
        usable_bytes=usable,
        nodes=nodes,
        size=size.name,
        allocator_cpu=size.cpu,
        allocator_memory=size.memory,
    )


def _packed(kinds: list[Kind], usable: int) -> int:
    """Return how many GPUs hold the pods, the largest placed first and each where least is left over."""
    rooms: Counter[int] = Counter()  # GPUs by what they have left
    gpus = 0
    for kind in sorted(kinds, key=lambda kind: -kind.vram_bytes):
        pods = kind.pods
        for room in sorted(room for room in rooms if room >= kind.vram_bytes):
            pods = _fill(rooms, room, rooms.pop(room), kind.vram_bytes, pods)
        new = -(-pods // (usable // kind.vram_bytes))
        _fill(rooms, usable, new, kind.vram_bytes, pods)
        gpus += new
    return gpus


def _fill(rooms: Counter[int], room: int, count: int, need: int, pods: int) -> int:
    """Place pods on ``count`` GPUs with ``room`` each, note what these have left, and return the pods that found no place."""
    each = room // need
    full = min(count, pods // each)
    rooms[room - each * need] += full
    pods, count = pods - full * each, count - full
    if count and pods:
        rooms[room - pods * need] += 1
        pods, count = 0, count - 1
    rooms[room] += count
    return pods


def _kinds(pods: int | None, memory: str | None, further: list[str]) -> list[Kind]:
    if (pods is None) != (memory is None):
        raise InputError("--pods and --memory go together: give both, or kinds of pods as --kind 100x4G")
    found = [] if pods is None or memory is None else [Kind(_pods("--pods", pods), _amount("--memory", memory))]
    for text in further:
        match = _KIND.fullmatch(text)
        if match is None:
            raise InputError(f"--kind is {text!r}: use PODSxVRAM, such as 100x4G")
        found.append(Kind(_pods("--kind", int(match[1])), _amount("--kind", match[2])))
    if not found:
        raise InputError("there is nothing to plan for: give --pods and --memory, or --kind 100x4G")
    return found


def _pods(option: str, pods: int) -> int:
    if not 1 <= pods <= MOST_PODS:
        raise InputError(f"{option} asks for {pods} pods: use 1 to {MOST_PODS}")
    return pods


def _amount(option: str, text: str) -> int:
    try:
        amount = parse_bytes(text, field=option)
    except QuantityError as error:
        raise InputError(str(error)) from None
    if amount == 0:
        raise InputError(f"{option} is {text!r}: use an amount above 0, such as 4G")
    return amount


def _share(text: str) -> Fraction:
    share = Fraction(text) if _SHARE.fullmatch(text) else Fraction(0)
    if not 0 < share <= 1:
        raise InputError(f"--utilization is {text!r}: use a share above 0 and up to 1, such as 0.8")
    return share
