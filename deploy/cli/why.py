"""``gpubus why``: everything the bus knows about one pod's placement, and what is true of it now."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import clean, make_console, print_json, warn

if TYPE_CHECKING:
    from bus.connection import Bus
    from deploy.cli.explain import Story
    from deploy.cli.fold import Kept
    from schemas.decision import Decision
    from schemas.pod import Pod, Waiting


def why(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="The pod, as Kubernetes names it.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show earlier decisions too.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="One line: what the pod's Kubernetes Event says of the newest decision.")
    ] = False,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Say why it did not go to this node.")
    ] = None,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Explain why a pod runs where it does, or why it waits and what would help.

    Shows the newest decision: node, GPUs, the filters that refused others, the best candidates with the parts of their
    scores. Then what holds now: its allocation in the ledger, and whether it waits.

    \b
    Examples:
      gpubus why ml/trainer-0
      gpubus why ml/trainer-0 --node gpu-17
      gpubus why ml/trainer-0 --all --json
    """
    namespace, slash, name = pod.partition("/")
    if not (namespace and slash and name) or "/" in name:
        guess = next((part for part in (name.rpartition("/")[2], namespace) if part), "trainer-0")
        raise InputError(f"{pod!r} is no pod: write NAMESPACE/POD, such as default/{guess}")
    if node is not None:
        _show_elsewhere(node, *run(_ask(namespace, name, node, nats, store)), as_json=as_json)
        return
    story = run(_gather(namespace, name, everything=everything, nats=nats, store=store))
    for line in story.unreadable:
        warn(line)
    if not story.known:
        raise NotFoundError(
            f"nothing is known about pod {pod}: `gpubus events 'gpubus.decision.>' --no-follow` shows the pods that were "
            "decided about"
        )
    if as_json:
        print_json(_as_json(story))
        return
    if short:
        from schemas.brief import brief

        print(clean(brief(story.told[0].decision)) if story.told else "no decision yet")
        return
    from deploy.cli.explain import show

    show(make_console(), story, history=everything)


async def _gather(
    namespace: str, name: str, *, everything: bool, nats: list[str] | None, store: Path | None
) -> "Story":
    from bus.history import newest
    from bus.streams import LEDGER
    from bus.subjects import subject
    from deploy.cli.explain import Story
    from deploy.cli.fold import World

    async with open_bus(nats, store) as bus:
        story = Story(namespace=namespace, name=name)
        await _decisions(bus, story, everything=everything)
        story.pod, story.waiting = await _state(bus, story)
        ledger = World()
        records, story.ledger_seq = await newest(bus, LEDGER, [subject("ledger", "node") + ".>"])
        for record in records:
            ledger.put_ledger(record)
        # A pod that was deleted and made again may still hold its old place beside the new one: the newest comes first.
        mine = [h for h in ledger.held if (h.allocation.namespace, h.allocation.name) == (namespace, name)]
        story.held = sorted(mine, key=lambda held: held.since, reverse=True)
        story.kept = [k for k in ledger.kept if _concerns(k, namespace, name)]
        story.unreadable += [f"the ledger of {u.subject} cannot be read: {u.reason}" for u in ledger.unreadable]
        return story


def _concerns(kept: "Kept", namespace: str, name: str) -> bool:
    pods = [(victim.namespace, victim.name) for victim in kept.hold.victims]
    return (namespace, name) in [(kept.hold.allocation.namespace, kept.hold.allocation.name), *pods]


async def _decisions(bus: "Bus", story: "Story", *, everything: bool) -> None:
    from bus import subjects
    from bus.codec import decode_as
    from bus.errors import UndecodableError
    from deploy.cli.explain import Told
    from deploy.cli.history import lanes, merged
    from schemas.decision import Decision

    opened = await lanes(bus, subjects.decision(story.namespace, story.name))
    for lane in opened:
        if everything:
            lane.from_sequence(1)
        else:
            await lane.from_last(1)
    async for entry in merged(opened, follow=False):
        try:
            event = decode_as(Decision, entry.payload)
        except UndecodableError as error:
            story.unreadable.append(f"DECISION {entry.seq} cannot be read: {error.reason}")
        else:
            story.told.insert(0, Told(entry.seq, event.time, event.data))


async def _state(bus: "Bus", story: "Story") -> tuple["Pod | None", "Waiting | None"]:
    from bus import subjects
    from bus.codec import decode
    from bus.errors import UndecodableError
    from bus.history import newest
    from bus.streams import STATE
    from schemas.pod import Pod, Waiting

    # The pool is left open: a pod may wait in another one than that of its newest decision.
    name = f"{subjects.token(story.namespace)}.{subjects.token(story.name)}"
    anywhere = f"{subjects.subject('state', 'waiting')}.*.{name}"
    records, _ = await newest(bus, STATE, [subjects.state("pod", story.namespace, story.name), anywhere])
    pod, waiting = None, None
    for record in records:
        try:
            data = decode(record.payload).data
        except UndecodableError as error:
            story.unreadable.append(f"STATE {record.seq} cannot be read: {error.reason}")
            continue
        if isinstance(data, Pod):
            pod = data
        elif isinstance(data, Waiting):
            waiting = data
    return pod, waiting


def _as_json(story: "Story") -> dict[str, Any]:
    import msgspec

    from deploy.cli.fold import as_fields

    return {
        "decisions": [
            {"sequence": told.seq, "time": told.time, **msgspec.to_builtins(told.decision)} for told in story.told
        ],
        "allocation": as_fields(story.held[0]) if story.held else None,
        "kept": [
            {"node": kept.node, **msgspec.to_builtins(kept.hold), "since": kept.since, "record": kept.record}
            for kept in story.kept
        ],
        "other_allocations": [as_fields(held) for held in story.held[1:]],
        "waiting": msgspec.to_builtins(story.waiting),
        "pod": msgspec.to_builtins(story.pod),
        "ledger_sequence": story.ledger_seq,
    }


async def _ask(
    namespace: str, name: str, node: str, nats: list[str] | None, store: Path | None
) -> "tuple[Decision, Decision | None]":
    from deploy.cli.explain import Story
    from deploy.replay.elsewhere import ask

    async with open_bus(nats, store) as bus:
        story = Story(namespace=namespace, name=name)
        await _decisions(bus, story, everything=True)
        placing = next((t.decision for t in story.told if t.decision.outcome in ("allocated", "unschedulable")), None)
        if placing is None:
            raise NotFoundError(f"no decision about a place for pod {namespace}/{name} is known")
        return placing, await ask(bus, placing, node)


def _show_elsewhere(node: str, decision: "Decision", alone: "Decision | None", *, as_json: bool) -> None:
    from deploy.cli.output import show_fields

    if alone is None:
        raise NotFoundError(
            f"what {decision.allocator} knew of node {node!r} then cannot be told: the node was not known, or no journal of this "
            "engine version leads to the decision"
        )
    if as_json:
        print_json({"decision": decision, "node": node, "alone": alone})
        return
    best = decision.candidates[0] if decision.candidates else None
    here = alone.candidates[0] if alone.candidates else None
    if alone.node and alone.node == decision.node:
        verdict = "it is where the pod went"
    elif here is None:
        verdict = f"it was refused: {alone.reason}"
    else:
        verdict = "it would have fit, and another was better"
    console = make_console()
    console.print(f"Node {clean(node)} at the moment of the decision: {verdict}", style="bold")
    fields: list[tuple[str, object]] = [("message", alone.message if here is None else ""), ("what helps", alone.help)]
    if here is not None:
        fields.append(
            ("score", f"{here.score}, from {', '.join(f'{part} {value}' for part, value in here.parts.items())}")
        )
    if best is not None and decision.node:
        fields.append(("the best", f"{best.node}, score {best.score}; {decision.message}"))
    show_fields(console, fields)
