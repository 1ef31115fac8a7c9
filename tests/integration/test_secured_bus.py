"""Everything over the bus as the chart has it: three servers with TLS and accounts, roles with no more rights than theirs."""

import asyncio
import contextlib
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import pytest

from bus import records, subjects
from bus.connection import Bus
from bus.errors import ApiError, BusUnreachableError, PublishUnconfirmedError
from bus.permissions import agent_user
from bus.streams import DECISION, LEDGER, STATE
from deploy.certificates.authority import Pair, hosts_of, issue
from tests.chart.render import rendered
from tests.integration.cluster import SYSTEM, Cluster, create_all, mixed, play_agents
from tests.integration.observe import agree
from tests.integration.parts import PARTS, PATIENCE_S, Parts, leader, token_of
from tests.integration.secured import RELEASE, SERVERS, SecuredBus

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRIES = 10


async def test_all_roles_work_and_lose_nothing_when_a_leader_is_killed(
    cluster: Cluster, secured: SecuredBus, admin_bus: Bus, parts: Parts, tmp_path: Path
) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["a", "b"])
    await cluster.add_nodes(["c"], pool="another")
    await play_agents(admin_bus, ["a", "b"])
    await parts.start(*PARTS, GPUBUS_ALERT_RULES="")
    token = tmp_path / "token"
    token.write_text(await token_of(cluster, "c"))
    await parts.agent("c", token)
    await create_all(cluster, mixed(6))
    await agree(admin_bus, cluster, placed=6, timeout=PATIENCE_S)

    killed = await secured.kill(await leader(admin_bus, LEDGER))
    await create_all(cluster, mixed(6, first=6))
    await agree(admin_bus, cluster, placed=12, timeout=2 * PATIENCE_S)
    await secured.start_one(killed)
    assert secured.violations() == []
    stored = await records.latest(admin_bus, STATE, subjects.state("gpu", "c"))
    assert stored.payload


class Stranger:
    """A client that tries things: what the server lets through, and what not."""

    def __init__(self, secured: SecuredBus, bus: Bus) -> None:
        self._secured, self.bus = secured, bus

    async def may_publish(self, subject: str) -> bool:
        before = len(self._secured.violations())
        try:
            await self.bus.publisher.publish(subject, b"{}", timeout=0.5)
        except (PublishUnconfirmedError, ApiError):
            await self.bus.client.flush()
            return len(self._secured.violations()) == before
        return True

    async def may_hear(self, subject: str, others: Bus, said: str) -> bool:
        heard = asyncio.Event()

        async def on_message(_: Any) -> None:
            heard.set()

        subscription = await self.bus.client.subscribe(subject, cb=on_message)
        await self.bus.client.flush()
        try:
            for _ in range(TRIES):  # the servers tell each other who listens
                await others.client.publish(said, b"secret")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await heard.wait()
                        return True
        finally:
            await subscription.unsubscribe()
        return False

    async def may_ask(self, request: str, body: object = None) -> bool:
        try:
            await self.bus.api(request, body, timeout=0.5)
        except ApiError:
            return True  # the server has looked at it
        except (nats.errors.Error, TimeoutError):
            return False
        return True


async def test_an_agent_speaks_for_its_own_node_and_reads_nobody_elses_business(
    cluster: Cluster, secured: SecuredBus, admin_bus: Bus, parts: Parts, tmp_path: Path
) -> None:
    await cluster.add_nodes(["n.1", "n2"])
    await parts.start("controller")
    token = tmp_path / "token"
    token.write_text(await token_of(cluster, "n.1"))
    shown = secured.security(agent_user("n.1"), token)
    await admin_bus.publisher.publish(subjects.decision("theirs", "pod"), b"secret", msg_id="d")
    async with await Bus.connect(secured.urls, name="agent", security=shown) as bus:
        agent = Stranger(secured, bus)
        own, other = "n.1", "n2"
        for make in (
            lambda node: subjects.state("gpu", node),
            subjects.usage_gpu,
            subjects.drift,
            lambda node: subjects.notice("default", "pod", node),
        ):
            assert await agent.may_publish(make(own)), make(own)
            assert not await agent.may_publish(make(other)), make(other)
        for subject in (
            subjects.ledger_node(own),
            subjects.ledger_node(other),
            subjects.decision("theirs", "pod"),
            subjects.state("pod", "theirs", "pod"),
            subjects.state("node", own),
            subjects.work("schedule", "shared"),
            subjects.rpc("mutate"),
            "gpubus.dead.STATE.1",
            "$SYS.REQ.USER.AUTH",
        ):
            assert not await agent.may_publish(subject), subject

        assert await agent.may_hear(subjects.ledger_node(own), admin_bus, subjects.ledger_node(own))
        for subject, said in (
            (subjects.ledger_node(other), subjects.ledger_node(other)),
            ("gpubus.>", subjects.ledger_node(other)),
            (">", subjects.decision("theirs", "pod")),
            ("gpubus.decision.>", subjects.decision("theirs", "pod")),
            ("_INBOX.>", f"{admin_bus.inbox}.x"),
            ("_INBOX.controller.>", "_INBOX.controller.x"),
            ("$JS.API.>", "$JS.API.INFO"),
            ("$SYS.>", "$SYS.REQ.USER.AUTH.x"),
        ):
            assert not await agent.may_hear(subject, admin_bus, said), subject

        await records.nearest(bus, LEDGER, subjects.ledger_node(own))
        consumer = {"stream_name": DECISION, "config": {"name": "spy", "deliver_subject": f"{bus.inbox}.spy"}}
        for request, body in (
            (f"STREAM.INFO.{LEDGER}", None),
            (f"STREAM.MSG.GET.{DECISION}", {"last_by_subj": subjects.decision("theirs", "pod")}),
            (f"DIRECT.GET.{DECISION}", {"last_by_subj": subjects.decision("theirs", "pod")}),
            (f"DIRECT.GET.{DECISION}.{subjects.decision('theirs', 'pod')}", None),
            (f"DIRECT.GET.{LEDGER}.{subjects.ledger_node(other)}", None),
            (f"DIRECT.GET.{STATE}.{subjects.state('gpu', other)}", None),
            (f"CONSUMER.CREATE.{DECISION}.spy", consumer),
            (f"STREAM.CREATE.{LEDGER}", {"name": LEDGER}),
            (f"STREAM.UPDATE.{LEDGER}", {"name": LEDGER}),
            (f"STREAM.DELETE.{DECISION}", None),
            (f"STREAM.PURGE.{LEDGER}", None),
            ("STREAM.LIST", None),
            ("INFO", None),
        ):
            assert not await agent.may_ask(request, body), request
    assert (await records.latest(admin_bus, DECISION, subjects.decision("theirs", "pod"))).payload == b"secret"


async def test_only_the_token_of_an_agent_lets_in(
    cluster: Cluster, secured: SecuredBus, admin_bus: Bus, parts: Parts, tmp_path: Path
) -> None:
    await cluster.add_nodes(["n1", "n2", "n3"])
    await parts.start("controller")
    good = await token_of(cluster, "n1")
    wrong = {
        "another's": await token_of(cluster, "n2", account=f"{RELEASE}-webhook"),
        "for another": await token_of(cluster, "n3", audience="elsewhere"),
        "made up": good[:-4] + "AAAA",
        "none": "",
        "a group's": secured.secrets["auth"]["controller"].decode(),
    }
    file = tmp_path / "token"
    for name, token in wrong.items():
        file.write_text(token)
        with pytest.raises(BusUnreachableError):
            await Bus.connect(secured.urls, name=name, timeout=1.5, security=secured.security(agent_user("n1"), file))
    file.write_text(good)
    # It calls itself another node, and is its own all the same.
    async with await Bus.connect(secured.urls, name="liar", security=secured.security(agent_user("n2"), file)) as bus:
        assert not await Stranger(secured, bus).may_publish(subjects.state("gpu", "n2"))
    with pytest.raises(BusUnreachableError):
        await Bus.connect(
            secured.urls,
            name="nobody",
            timeout=1.5,
            security=msgspec.structs.replace(secured.security("admin"), user="", password=None),
        )
    del admin_bus


@pytest.mark.parametrize("part", PARTS)
async def test_a_group_may_write_what_its_roles_are_authors_of_alone(
    secured: SecuredBus, admin_bus: Bus, part: str
) -> None:
    del admin_bus
    authors = {
        subjects.ledger_node("a"): "scheduler",
        subjects.state("node", "a"): "controller",
        subjects.ledger_rollout("p", "worker"): "controller",
        "gpubus.ledger.workload.n.k.a.u": "webhook",
        "gpubus.ledger.ports.42240": "webhook",
        "gpubus.ledger.seats.n.w": "controller",
        subjects.state("client", "n", "p"): "controller",
        "gpubus.state.alert.r": "monitor",
        subjects.alert("r"): "monitor",
        subjects.state("gpu", "a"): "",
        subjects.usage_gpu("a"): "",
    }
    async with await Bus.connect(secured.urls, name=part, security=secured.security(part)) as bus:
        client = Stranger(secured, bus)
        for subject, author in authors.items():
            assert await client.may_publish(subject) == (author == part), subject
        for request in (f"STREAM.UPDATE.{LEDGER}", f"STREAM.DELETE.{LEDGER}", f"STREAM.PURGE.{LEDGER}"):
            assert not await client.may_ask(request, {"name": LEDGER}), request


async def shown_to(port: int, authority: Path) -> bytes:
    """Return the certificate that a server shows whoever connects now."""
    context = ssl.create_default_context(cafile=str(authority))
    reader, writer = await asyncio.open_connection("localhost", port)
    try:
        await reader.readline()  # it says who it is before it asks for TLS
        await writer.start_tls(context, server_hostname="localhost")
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return bytes(certificate)


async def current(bus: Bus, stream: str) -> bool:
    """Whether all servers have all of a stream."""
    await leader(bus, stream)
    try:
        info = json.loads(await bus.api(f"STREAM.INFO.{stream}", timeout=2.0))
    except (nats.errors.Error, TimeoutError):
        return False
    copies = info["cluster"].get("replicas", [])
    return len(copies) == SERVERS - 1 and all(one["current"] and not one.get("offline") for one in copies)


async def test_a_certificate_that_cert_manager_renews_is_taken_up_and_no_connection_is_lost(
    secured: SecuredBus, admin_bus: Bus
) -> None:
    """What the pod's reloader runs, beside each server."""
    objects, _ = rendered({"webhook": {"certManager": {"enabled": True}}}, name=RELEASE, namespace=SYSTEM)
    config = ("ConfigMap", f"{RELEASE}-nats")
    assert objects[config]["data"] == secured.objects[config]["data"]
    pod = objects["StatefulSet", f"{RELEASE}-nats"]["spec"]["template"]["spec"]
    (reloader,) = (one for one in pod["containers"] if one["name"] == "reloader")
    assert pod["shareProcessNamespace"]
    tls = secured.home / "nats-tls"
    script = reloader["command"][-1].replace("/etc/nats/tls", str(tls)).replace("sleep 30", "sleep 0.1")

    async def certificates() -> set[bytes]:
        return {await shown_to(client, tls / "ca.crt") for client, _, _ in secured.ports}

    (first,) = await certificates()
    running = [
        await asyncio.create_subprocess_exec(
            "sh", "-c", script.replace("/tmp/nats.pid", str(secured.home / f"{index}.pid"))
        )
        for index in range(SERVERS)
    ]
    try:
        authority = Pair(secured.secrets["ca"]["tls.crt"], secured.secrets["ca"]["tls.key"])
        fresh = issue(authority, "nats", hosts_of(secured.secrets["nats-tls"]["tls.crt"]), datetime.now(UTC))
        (tls / "tls.crt").write_bytes(fresh.certificate)
        (tls / "tls.key").write_bytes(fresh.key)
        async with asyncio.timeout(PATIENCE_S):
            while len(now := await certificates()) != 1 or first in now:  # noqa: ASYNC110  servers tell nobody
                await asyncio.sleep(0.1)
        await admin_bus.publisher.publish(subjects.alert("r"), b"{}", msg_id="after")
        assert admin_bus.publisher.epoch == 0
        # Servers believe each other as before: one that comes back is let in.
        killed = await secured.kill(await leader(admin_bus, LEDGER))
        await secured.start_one(killed)
        async with asyncio.timeout(PATIENCE_S):
            while not await current(admin_bus, LEDGER):  # noqa: ASYNC110  servers tell nobody
                await asyncio.sleep(0.1)
    finally:
        for one in running:
            one.kill()
            await one.wait()
