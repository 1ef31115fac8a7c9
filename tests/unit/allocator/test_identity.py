"""What is published under one name and speaks of another is believed about neither."""

from datetime import UTC, datetime

import msgspec
import pytest

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.core import Core
from schemas.cluster import GpuInventory, Node, Pool
from schemas.event import Event
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Waiting
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def record(subject: str, data: msgspec.Struct) -> Record:
    event = Event(id="i", source="/t", type=TYPE_NAMES[type(data)], subject="s", time=NOW, data=data)
    return Record(subject, 1, codec.encode(event))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("node", Node(name="b", pool="p", cpu_milli=1000)),
        ("gpu", GpuInventory(node="b", gpus=[], observed_at=NOW)),
        ("pool", Pool(name="b")),
    ],
)
def test_state_about_another_object(kind, data):
    core = Core("x", lambda: 0)
    with pytest.raises(UndecodableError, match="about 'b', its subject about 'a'"):
        core.on_state(record(subjects.state(kind, "a"), data))
    assert core.snapshot.nodes() == []
    assert not core.snapshot.pools()


def test_waiting_record_of_another_pod():
    core = Core("x", lambda: 0)
    pod = Waiting(
        namespace="d", name="b", uid="u", request=GpuRequest(pool="p"), reason="r", state_seq=0, ledger_seq=0, since=NOW
    )
    with pytest.raises(UndecodableError, match="about 'p/d/b', its subject about 'p/d/a'"):
        core.on_state(record(subjects.state("waiting", "p", "d", "a"), pod))
    assert core.cluster.waiting.all() == []


def test_a_ledger_record_of_another_node_freezes_the_one_it_stands_under():
    core = Core("x", lambda: 0)
    core.on_state(record(subjects.state("node", "a"), Node(name="a", pool="p")))
    with pytest.raises(UndecodableError, match="about 'b'"):
        core.on_ledger(
            "a", record(subjects.ledger_node("a"), NodeRecord(node="b", txn="t", allocations=(), changes=()))
        )
    host = core.snapshot.host("a")
    assert host is not None
    assert host.frozen


def test_json_nested_without_end_is_undecodable():
    whole = record(subjects.state("node", "a"), Node(name="a", pool="p")).payload
    deep = whole[: whole.index(b'"data":') + len(b'"data":')]
    core = Core("x", lambda: 0)
    for payload in (b"[" * 100_000, deep + b"[" * 100_000):
        with pytest.raises(UndecodableError):
            core.on_state(Record(subjects.state("node", "a"), 1, payload))
        with pytest.raises(UndecodableError):
            codec.decode(payload)
