"""What leaves the house is what is listed, whatever the types of tomorrow hold."""

import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import inspect

from bus import codec, subjects
from bus.chain import link
from bus.follower import Record
from deploy.replay.redaction import Redactor, redact
from deploy.replay.roles import ROLES, Role
from deploy.replay.vocabulary import is_amount, ours
from schemas import reasons
from schemas.decision import Decision
from schemas.event import Event
from schemas.journal import Adopt, Tell, Turn
from schemas.node_rules import NodeRequirement, NodeRules, NodeTerm
from schemas.registry import EVENT_TYPES, TYPE_NAMES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEFT = re.compile(r"canary\d+@[^\"\\]*")


class Canaries:
    """Builds the JSON of a type with a text of its own in every place where a text may stand."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def text(self, place: str) -> str:
        return f"canary{next(self._numbers)}@{place}"

    def build(self, kind: inspect.Type, place: str) -> Any:
        for types, made in self.FIXED.items():
            if isinstance(kind, types):
                return made
        return self.made(kind, place)

    FIXED: ClassVar[dict[Any, Any]] = {
        inspect.BoolType: True,
        inspect.IntType | inspect.FloatType: 2,
        inspect.DateTimeType: "2026-01-01T00:00:00Z",
    }

    def made(self, kind: inspect.Type, place: str) -> Any:  # noqa: PLR0911  one line for each kind of type
        match kind:
            case inspect.Metadata():
                return self.build(kind.type, place)
            case inspect.StrType() | inspect.BytesType() | inspect.AnyType():
                return self.text(place)
            case inspect.LiteralType():
                return kind.values[0]
            case inspect.RawType():
                return self.build(inspect.type_info(Decision), "Decision")
            case inspect.TupleType():
                return [self.build(item, place) for item in kind.item_types]
            case inspect.CollectionType():
                return [self.build(item, place) for item in self.variants(kind.item_type)]
            case inspect.DictType():
                return {self.text(place): self.build(kind.value_type, place)}
            case inspect.UnionType():
                return self.build(next(self.variants(kind)), place)
            case inspect.StructType():
                return self.struct(kind)
        raise AssertionError(f"{place}: no text is known for {kind}")

    def variants(self, kind: inspect.Type) -> Iterator[inspect.Type]:
        if isinstance(kind, inspect.UnionType):
            yield from (entry for entry in kind.types if not isinstance(entry, inspect.NoneType))
        else:
            yield kind

    def struct(self, kind: inspect.StructType) -> Any:
        owner = getattr(kind.cls, "__origin__", kind.cls).__name__
        made = {field.encode_name: self.build(field.type, f"{owner}.{field.name}") for field in kind.fields}
        if kind.array_like:
            # Fields that a later version adds stand at the end.
            return [*([kind.tag] if kind.tag else []), *made.values(), self.text(f"{owner}+")]
        return made | {self.text(f"{owner}+key"): {"inner": [self.text(f"{owner}+")]}}


def record(subject: str, payload: bytes, seq: int = 1) -> Record:
    return Record(subject, seq, payload, 1, deleted=False)


def event(data: Any, seq: int = 1, subject: str = "gpubus.journal.east") -> tuple[str, Record]:
    said = Event(id="e", source="/s", type=TYPE_NAMES[type(data)], subject="o", time=NOW, data=data)
    return subjects.names(subject)[0].upper(), record(subject, codec.encode(said), seq)


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_of_every_text_of_every_type_only_the_listed_ones_stay(name: str) -> None:
    made = Canaries().build(inspect.type_info(Event[EVENT_TYPES[name]]), name)
    made["type"] = name
    payload = json.dumps(made).encode()
    subject = subjects.subject("ledger", "node", "canary0@subject")
    (found,) = redact([("LEDGER", record(subject, payload))], [2, 3])
    left = {text.split("@")[1] for text in LEFT.findall(found[1].payload.decode() + found[1].subject)}
    assert left <= {f"{owner.__name__}.{field}" for (owner, field), role in ROLES.items() if role is Role.HARDWARE}
    assert "canary" in payload.decode()


def test_every_listed_text_is_a_field_that_there_is() -> None:
    for owner, field in ROLES:
        assert field in owner.__struct_fields__, (owner, field)


def test_kinds_of_records_stay_in_subjects() -> None:
    contract = (Path(__file__).parents[2] / "deploy" / "contract" / "asyncapi.json").read_text()
    kinds = set(re.findall(r"gpubus\.ledger\.([a-z]+)", contract))
    entries = [("LEDGER", record(subjects.subject("ledger", kind, "secret"), b"")) for kind in sorted(kinds)]
    assert {"node", "ports"} <= kinds
    assert [subjects.names(found.subject)[1] for _, found in redact(entries, [])] == sorted(kinds)


def test_what_is_no_event_has_no_text_left() -> None:
    odd = [
        record("gpubus.journal.a", text) for text in (b"secret", b'{"type":"secret","secret":["secret"]}', b'"secret"')
    ]
    assert all(b"secret" not in entry.payload for _, entry in redact([("JOURNAL", entry) for entry in odd], []))


def test_sentences_keep_our_words_and_lose_names_even_those_that_are_words_of_ours() -> None:
    told = "gang team-a/node is being placed; 0 of 12 nodes fit: room is kept on best, where the pod does not fit now"
    steps = tuple(
        Tell(namespace="team-a", name=name, pod_uid=f"u-{name}", pool="p", reason=reasons.GANG_WAITING, message=told)
        for name in ("node", "best", "fit", "team-a/node")
    )
    turn = Turn(allocator="east", number=1, decided=0, engine="4", steps=steps)
    ((_, found),) = redact([event(turn)], [])
    (first, second, *_) = codec.decode_as(Turn, found.payload).data.steps
    key = codec.decode_as(Turn, found.payload).data.steps[3].name
    assert first.message == (
        f"gang {key} is being placed; 0 of 12 nodes fit: room is kept on {second.name}, where the pod does not fit now"
    )
    assert first.reason == reasons.GANG_WAITING


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("3 of 9 nodes fit, {} is the best: score 7", ["fit"]),
        ("12 have still to leave {}", ["nodes"]),
        (
            "0 of the 2 members that gang {} needs fit; {}: GpuUnhealthy: 0 of 9 nodes fit: 9 GpuUnhealthy",
            ["nodes", "fit"],
        ),
        ("pool '{}' is not known", ["pool"]),
        ("quota {} of namespace {}: workers 1 of 1 used, 1 asked", ["ResourceQuota/workers", "used"]),
        ("makes room on {} for {}, which goes before it: QoS high and priority 1 before low and 0", ["room", "it/for"]),
    ],
)
def test_names_that_are_words_of_ours_are_told_by_where_they_stand(said: str, names: list[str]) -> None:
    pieces = sorted({*names, *(piece for name in names for piece in name.split("/"))})
    steps = tuple(
        Tell(namespace="", name=name, pod_uid="", pool="", reason="", message=said.format(*names)) for name in pieces
    )
    ((_, found),) = redact([event(Turn(allocator="", number=1, decided=0, engine="4", steps=steps))], [])
    new = dict(zip(pieces, (step.name for step in codec.decode_as(Turn, found.payload).data.steps), strict=True))
    told = codec.decode_as(Turn, found.payload).data.steps[0].message
    assert told == said.format(*(new[name] for name in names))


def test_names_keep_their_order_and_labels_their_numbers() -> None:
    requirement = NodeRequirement(key="rank", operator="Gt", values=("9",))
    rules = NodeRules(required=(NodeTerm(match_expressions=(requirement,)),), selector=(("rank", "010"), ("zone", "z")))
    made = json.loads(codec.encode(rules))
    labels = {"rank": "10", "zone": "z"}
    waiting = {"type": "gpubus.waiting.v1", "data": {"request": {"pool": "p", "nodes": made}}}
    node = {"type": "gpubus.node.v1", "data": {"name": "n-2", "labels": labels}}
    other = {"type": "gpubus.node.v1", "data": {"name": "n-10", "labels": {}}}
    entries = [("STATE", record("gpubus.state.node.a", json.dumps(text).encode())) for text in (waiting, node, other)]
    asked, two, ten = (json.loads(found.payload)["data"] for _, found in redact(entries, [2]))
    rule = asked["request"]["nodes"]["required"][0]["matchExpressions"][0]
    (key, written), zone = asked["request"]["nodes"]["selector"]
    assert key == rule["key"] == next(iter(two["labels"]))
    assert int(two["labels"][key]) == int(written) > int(rule["values"][0])
    assert two["labels"][key] != written
    assert two["labels"][zone[0]] == zone[1]
    assert ten["name"] < two["name"]


def test_digests_are_those_of_the_new_messages_also_where_a_turn_was_stored_late() -> None:
    def turn(number: int, previous: str) -> tuple[str, Record]:
        made = Turn(
            allocator="east", number=number, decided=0, engine="4", steps=(Adopt("secret", number),), previous=previous
        )
        return event(made, number)

    one = turn(1, "")
    two = turn(2, link(one[1].payload))
    three = turn(3, link(two[1].payload))
    new = dict(zip((1, 3, 2), (found.payload for _, found in redact([one, three, two], [])), strict=True))
    said = {number: codec.decode_as(Turn, payload).data.previous for number, payload in new.items()}
    assert said == {1: "", 2: link(new[1]), 3: link(new[2])}
    ((_, alone),) = redact([three], [])
    assert codec.decode_as(Turn, alone.payload).data.previous == "0" * 32


def test_a_part_of_the_nodes_keeps_its_nodes() -> None:
    entries = [("LEDGER", record(subjects.ledger_node(f"n{number}"), b"")) for number in range(20)]
    redactor = Redactor(entries, [2])
    assert len({redactor.apply(entry).subject for _, entry in entries}) == 20


def test_the_words_that_stay_are_of_sentences_and_no_names() -> None:
    assert {"nodes", "fit", "gang"} <= ours()
    assert all(is_amount(word) for word in ("12", "-3", "5%", "40s", "10GiB", "2026-01-01T00:00:00Z"))
    assert not any(is_amount(word) for word in ("gpu-1", "3secret", "x1"))
