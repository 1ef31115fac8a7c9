"""Who an agent is by its token, and keys and tokens as NATS writes them."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import subjects
from bus.permissions import ROLES, agent_user, inbox, of_agent, of_roles
from consumers.authenticator.claims import Account, Asked, RefusedError, Review, Server, node_of, user_claims
from consumers.authenticator.nkeys import Signer, TokenError, verified
from deploy.local.callout import GUARD_ROLES, settings
from deploy.local.monitoring import SettingError
from deploy.local.roles import ASKED_ROLES, CLUSTER_ROLES, COEXISTING_ROLES, METRICS_ROLES
from deploy.local.roles import ROLES as PLAIN_ROLES

ACCOUNT = "system:serviceaccount:sys:agent"
NODE = "authentication.kubernetes.io/node-name"


def review(**changes) -> Review:
    user = Account(username=changes.pop("username", ACCOUNT), extra=changes.pop("extra", {NODE: ("n1",)}))
    return Review(**{"authenticated": True, "user": user, "audiences": ("bus",), **changes})


def test_a_token_of_an_agents_pod_speaks_for_its_node() -> None:
    assert node_of(review(), ACCOUNT, "bus") == "n1"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (review(authenticated=False, error="expired"), "expired"),
        (review(authenticated=False), "does not know"),
        (review(audiences=("api",)), "is for api"),
        (review(audiences=()), "is for nobody"),
        (review(username="system:serviceaccount:sys:other"), "is that of system:serviceaccount:sys:other"),
        (review(username="system:serviceaccount:sys2:agent"), "agents are"),
        (review(extra={}), "1.30"),
        (review(extra={NODE: ("a", "b")}), "1.30"),
        (review(extra={NODE: ("",)}), "1.30"),
    ],
)
def test_every_other_token_is_refused(found: Review, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        node_of(found, ACCOUNT, "bus")


def test_keys_are_as_nats_writes_them() -> None:
    seed = Signer.generate()
    signer = Signer(seed)
    assert seed.startswith("SA")
    assert signer.public.startswith("A")
    assert len(seed) == 58
    assert len(signer.public) == 56
    assert Signer(seed).public == signer.public


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: base64.b32encode(raw).decode()))
def test_what_is_no_key_or_token_is_refused(text: str) -> None:
    with pytest.raises(TokenError):
        Signer(text)
    with pytest.raises(TokenError):
        verified(text)


def test_only_a_server_is_believed() -> None:
    with pytest.raises(TokenError, match="is no server"):
        verified(Signer(Signer.generate()).sign({"nats": {}}))


def test_a_user_is_bound_to_connection_account_and_time() -> None:
    asked = Asked(server_id=Server(id="NS"), user_nkey="UX")
    claims = user_claims(asked, "n.1", 1000)
    assert (claims["sub"], claims["aud"], claims["exp"]) == ("UX", "GPUBUS", 4600)
    token = Signer(Signer.generate()).sign(claims).split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(token + "=="))["nats"]["pub"]["allow"] == list(of_agent("n.1").publish)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_grants_of_two_nodes_share_nothing_that_is_written(one: str, other: str) -> None:
    if one == other:
        return
    first, second = of_agent(one), of_agent(other)
    written = {subject for subject in first.publish if not subject.startswith("$JS.")}
    assert not written & set(second.publish)
    assert not set(first.subscribe) & set(second.subscribe)
    for subject in (*first.publish, *first.subscribe):
        assert ">" not in subject.removesuffix(".>")
    assert inbox(agent_user(one)) != inbox(agent_user(other))


def test_every_role_has_its_grants_and_only_allocators_may_add_to_streams() -> None:
    clustered = {*CLUSTER_ROLES, *COEXISTING_ROLES, "gateway", "mutator"}
    assert set(ROLES) == {*PLAIN_ROLES, *ASKED_ROLES, *METRICS_ROLES, *GUARD_ROLES, *clustered}
    everything = of_roles("all", ROLES)
    for subject in everything.publish:
        assert not subject.startswith(("$JS.API.STREAM.DELETE", "$SYS"))
        assert subject == "$JS.API.STREAM.PURGE.TICK" or "PURGE" not in subject
    adding = {role for role in ROLES for subject in of_roles("one", [role]).publish if ".STREAM.UPDATE." in subject}
    assert adding == {"allocator"}
    assert not {f"$JS.API.STREAM.UPDATE.{stream}" for stream in ("LEDGER", "DECISION", "JOURNAL")} & {
        *everything.publish
    }
    assert subjects.state("gpu", "x") not in everything.publish


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "GPUBUS_CALLOUT_SEED_FILE is not set"),
        ({"GPUBUS_CALLOUT_SEED_FILE": "/nowhere"}, "GPUBUS_AGENT_ACCOUNT is ''"),
        ({"GPUBUS_CALLOUT_SEED_FILE": "/nowhere", "GPUBUS_AGENT_ACCOUNT": "agent"}, "write system:serviceaccount"),
        ({"GPUBUS_CALLOUT_SEED_FILE": "/nowhere", "GPUBUS_AGENT_ACCOUNT": ACCOUNT}, "cannot be read"),
        ({"GPUBUS_CALLOUT_SEED_FILE": "/etc/hostname", "GPUBUS_AGENT_ACCOUNT": ACCOUNT}, "no key|no seed"),
    ],
)
def test_settings_that_cannot_be_used_are_named(environment, says, monkeypatch) -> None:
    for name in ("GPUBUS_CALLOUT_SEED_FILE", "GPUBUS_AGENT_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=says):
        settings()
