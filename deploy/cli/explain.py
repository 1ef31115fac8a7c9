"""One pod's story in text: what was decided and why, and what holds now."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from deploy.cli.fold import Held, Kept
from deploy.cli.output import clean, gib, instant, show_fields, show_table, tflops
from deploy.cli.summary import grants, request
from schemas.decision import Decision, GpuGrant
from schemas.pod import Pod, Waiting
from schemas.reasons import CODES

if TYPE_CHECKING:
    from rich.console import Console


class Told(msgspec.Struct, frozen=True):
    """One decision as it was published."""

    seq: int
    time: datetime
    decision: Decision


class Story(msgspec.Struct):
    """What the bus knows about one pod. Decisions and allocations are newest first.

    Attributes:
        kept: Room that is kept for it, or that it is to leave for another.
    """

    namespace: str
    name: str
    told: list[Told] = []
    held: list[Held] = []
    kept: list[Kept] = []
    waiting: Waiting | None = None
    pod: Pod | None = None
    ledger_seq: int = 0
    unreadable: list[str] = []

    @property
    def known(self) -> bool:
        """Whether the bus knows the pod at all."""
        return bool(self.told or self.held or self.waiting or self.pod)


def show(console: "Console", story: Story, *, history: bool) -> None:
    """Print a pod's story, with its earlier decisions if ``history``."""
    title = clean(f"{story.namespace}/{story.name}")
    if story.told:
        _show_decision(console, title, story.told[0])
    else:
        console.print(f"{title}: no decision yet", style="bold")
    if history:
        rows = [
            [t.seq, instant(t.time), t.decision.outcome, t.decision.node, t.decision.reason, t.decision.message]
            for t in story.told[1:]
        ]
        show_table(console, "Earlier decisions", ("DECISION>", "time", "outcome", "node", "reason", "message"), rows)
    _show_present(console, story)


def _show_decision(console: "Console", title: str, told: Told) -> None:
    decision = told.decision
    where = f" on {decision.node}" if decision.node else ""
    console.print(f"{title}: {decision.outcome}{clean(where)}", style="bold")
    reason = CODES.get(decision.reason)
    show_fields(
        console,
        [
            ("message", decision.message),
            ("reason", f"{decision.reason} - {reason.meaning}" if reason else decision.reason),
            ("what helps", decision.help or (reason.help if reason else "")),
            *_preemption(decision),
            (
                "decided",
                f"{instant(told.time)} by {decision.allocator} in {decision.duration_us} us, DECISION {told.seq}",
            ),
            ("pod UID", decision.pod_uid),
            ("pool", decision.pool),
            ("policy", f"{decision.policy} (hash {decision.policy_hash})" if decision.policy else ""),
            ("engine", decision.engine),
            (
                "basis",
                f"STATE {decision.basis.state}, LEDGER {decision.basis.ledger}, ordinal {decision.basis.ordinal}",
            ),
        ],
    )
    gpus = [[gpu.index, gpu.uuid, tflops(gpu.tflops_milli), gib(gpu.vram_bytes), _how(gpu)] for gpu in decision.gpus]
    show_table(console, "GPUs given", ("gpu>", "UUID", "TFLOPS>", "VRAM GiB>", "how"), gpus)
    shares = [
        [one.name, g.index, tflops(g.tflops_milli), gib(g.vram_bytes)] for one in decision.containers for g in one.gpus
    ]
    show_table(console, "Of these, by container", ("container", "gpu>", "TFLOPS>", "VRAM GiB>"), shares)
    filters = [[f.reason, f.nodes, f.gpus, ", ".join(f.examples), _meaning(f.reason)] for f in decision.filters]
    show_table(console, "Refused by filters", ("reason", "nodes>", "GPUs>", "examples", "meaning"), filters)
    parts = list(dict.fromkeys(part for candidate in decision.candidates for part in candidate.parts))
    candidates = [[c.node, c.score, *(c.parts.get(part, "-") for part in parts)] for c in decision.candidates]
    show_table(console, "Best candidates", ("node", "score>", *(f"{part}>" for part in parts)), candidates)
    attempts = [[a.node, grants(a.gpus), a.decided, a.dropped] for a in decision.attempts]
    show_table(
        console, "Earlier attempts, overtaken by other allocators", ("node", "GPUs", "decided>", "dropped>"), attempts
    )


def _preemption(decision: Decision) -> list[tuple[str, object]]:
    said = decision.preemption
    if said is None:
        return []
    until = instant(datetime.fromtimestamp(said.until_s, UTC))
    if decision.outcome == "evicted":
        return [
            ("makes room for", f"{said.preemptor.namespace}/{said.preemptor.name}, for which it is kept until {until}")
        ]
    victims = ", ".join(f"{pod.namespace}/{pod.name}" for pod in said.victims) or "nobody"
    return [("evicts", f"{victims} from {said.node}; {grants(said.gpus)} is kept there until {until}")]


def _how(gpu: GpuGrant) -> str:
    cut = gpu.partition.template if gpu.partition is not None else ""
    return " ".join(word for word in ("alone" if gpu.exclusive else "", gpu.isolation, cut) if word)


def _meaning(code: str) -> str:
    return CODES[code].meaning if code in CODES else ""


def _show_present(console: "Console", story: Story) -> None:
    console.print(f"\nNow, as of LEDGER {story.ledger_seq}", style="bold")
    fields: list[tuple[str, object]] = []
    for held in story.held:
        gpus = held.allocation.gpus
        amounts = f"{tflops(sum(g.tflops_milli for g in gpus))} TFLOPS, {gib(sum(g.vram_bytes for g in gpus))} GiB VRAM"
        fields.append(("holds", f"{grants(gpus)} on {held.node}, {amounts}, since LEDGER {held.since}"))
    if not story.held:
        fields.append(("holds", "nothing"))
    for kept in story.kept:
        pod, until = kept.hold.allocation, instant(datetime.fromtimestamp(kept.hold.until_s, UTC))
        if (pod.namespace, pod.name) == (story.namespace, story.name):
            fields.append(("is kept", f"{grants(pod.gpus)} on {kept.node} until {until}, since LEDGER {kept.since}"))
        else:
            fields.append(("is to go", f"from {kept.node}, for {pod.namespace}/{pod.name}, since LEDGER {kept.since}"))
    if story.waiting is not None:
        meaning = _meaning(story.waiting.reason)
        fields.append(
            (
                "waits",
                f"since {instant(story.waiting.since)} for {request(story.waiting.request)}: {story.waiting.reason}",
            )
        )
        fields.append(("", meaning))
    else:
        fields.append(("waits", "no"))
    if story.pod is not None:
        fields.append(("pod", f"{story.pod.phase}{' on ' + story.pod.node if story.pod.node else ''}"))
    show_fields(console, fields)
