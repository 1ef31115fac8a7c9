"""What pools put into pods: what a rollout brings clients to counts more than what the pool wants."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bus import codec
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.mutator.clients import Clients
from consumers.mutator.options import Images
from schemas.event import Event
from schemas.registry import TYPE_NAMES
from schemas.rollout import ComponentSpec, Member, Rollout, Template, UpdatePolicy
from schemas.rollout_template import make_template, member_hashes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATE, LEDGER = "gpubus.state.component.p.client", "gpubus.ledger.rollout.p.client"
OLD = make_template({"remoteModeImage": "c:1"}, {"NVIDIA": "1"}, {"NVIDIA/middleware": "m:1"})
NEW = make_template(
    {"remoteModeImage": "c:2", "embeddedModeImage": "w:2", "patchToContainer": {"tty": True}},
    {"NVIDIA": "2"},
    {"NVIDIA/middleware": "m:2", "NVIDIA/remoteClient": "provider:2"},
)


def said(subject: str, data: Any) -> Record:
    event = Event(id="e", source="/test", type=TYPE_NAMES[type(data)], subject="s", time=NOW, data=data)
    return Record(subject, 1, codec.encode(event))


def wants(template: Template) -> Record:
    return said(STATE, ComponentSpec(pool="p", component="client", template=template, policy=UpdatePolicy()))


def brings_to(template: Template) -> Record:
    return said(LEDGER, Rollout(pool="p", component="client", target=template, changed_at=NOW, step="started"))


def hash_of(template: Template) -> str:
    member = Member(pool="p", component="client", name="ns/a", uid="u", hash="", created_at=NOW, vendor="NVIDIA")
    return member_hashes(template)(member)


def test_a_rollout_counts_more_than_the_pool_images_included() -> None:
    clients = Clients()
    assert clients.get("p", "NVIDIA") is None
    clients.apply(wants(NEW))
    found = clients.get("p", "NVIDIA")
    assert found is not None
    assert (found.hash, found.patch) == (hash_of(NEW), {"tty": True})
    assert found.images == Images(limiter="m:2", client="provider:2", worker="w:2")
    assert clients.get("q", "NVIDIA") is None
    assert clients.get("p", "AMD").images == Images(client="c:2", worker="w:2")
    clients.apply(brings_to(OLD))
    back = clients.get("p", "NVIDIA")
    assert (back.hash, back.images) == (hash_of(OLD), Images(limiter="m:1", client="c:1"))
    clients.forget_records()
    assert clients.get("p", "NVIDIA") == found
    clients.apply(Record(STATE, 3, b"", deleted=True))
    assert clients.get("p", "NVIDIA") is None


def test_what_cannot_be_read_changes_nothing() -> None:
    clients = Clients()
    clients.apply(wants(OLD))
    for record in (Record(STATE, 2, b"{half"), Record("gpubus.state.component.p", 2, b"")):
        with pytest.raises(UndecodableError):
            clients.apply(record)
    assert clients.get("p", "NVIDIA").hash == hash_of(OLD)


def test_a_rollout_that_has_halted_gives_new_pods_what_all_had_before() -> None:
    clients = Clients()
    clients.apply(wants(NEW))
    halted = Rollout(
        pool="p", component="client", target=NEW, previous=OLD, changed_at=NOW, step="halted", phase="halted"
    )
    clients.apply(said(LEDGER, halted))
    assert clients.get("p", "NVIDIA").hash == hash_of(OLD)
