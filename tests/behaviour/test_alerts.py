"""From a GPU that heats up to the person on call: real bus, real store, real Alertmanager."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from bus import codec, subjects
from bus.codec import decode_as as decoded
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.history import newest
from bus.streams import ALERT, STATE
from bus.tasks import end
from consumers.alerter.configuration import parse
from consumers.alerter.rulebook import ACTIVE, BUILT_IN, REFUSED, Rulebook, built_in
from consumers.alerter.rules import CompiledRule
from consumers.alerter.service import Alerter
from consumers.alerter.sources import MOST_BYTES, FileSource, Offer
from consumers.alerter.streaks import evaluated
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.store import Result, StoreUnavailableError
from consumers.notifier.payload import payload
from consumers.notifier.service import Notifier
from consumers.recorder.service import Recorder
from deploy.local.monitoring import SettingError, alertmanagers_from_values
from deploy.local.server import free_port
from schemas.alert import Alert, AlertNotice, RuleRefusal, RuleSet, RuleState
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.event import Event
from schemas.registry import TYPE_NAMES
from schemas.usage import GpuSample, NodeUsage
from tests.conftest import eventually
from tests.stores.alertmanager import alertmanager, receiver

METHOD_A = """
alert:
  alertManagerConfig:
    global: {}
    receivers:
      - name: default-receiver
        webhook_configs:
          - url: https://<your-alert-webhook>
    route:
      receiver: default-receiver
      group_wait: 10s
      group_interval: 5m
      repeat_interval: 3h
"""
METHOD_B = """
alert:
  enabled: false
controller:
  command:
    - /manager
    - -metrics-bind-address
    - :9000
    - -leader-elect
    - -enable-auto-scale
    - -enable-alert
    - -enable-auto-expander
    - -alert-manager-addr
    - http://<alertmanager-service>.<namespace>.svc.cluster.local:9093
"""
"""Both pasted from the production guide, step 3."""


def config(port: int) -> str:
    """The Alertmanager configuration of method A with a webhook of ours, and without its long waits."""
    values = msgspec.yaml.decode(METHOD_A.replace("https://<your-alert-webhook>", f"http://127.0.0.1:{port}/"))
    found = values["alert"]["alertManagerConfig"]
    found["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    return msgspec.yaml.encode(found).decode()


def rules(path: Path, interval: str = "1s", **changes) -> Path:
    """Write the built-in GPUTemperatureHigh, evaluated more often."""
    rule = next(rule for rule in built_in().rules if rule.name == "GPUTemperatureHigh")
    rule = msgspec.structs.replace(rule, evaluation_interval=interval, **changes)
    path.write_bytes(msgspec.yaml.encode({"alertRules": [msgspec.to_builtins(rule)]}))
    return path


class Gpu:
    """A node with one GPU that says five times a second how hot it is."""

    def __init__(self, bus: Bus, node: str = "n") -> None:
        self.bus = bus
        self.node = node
        self.celsius = 60
        self.muted = False

    async def say(self, subject: str, data: msgspec.Struct, event_id: str) -> None:
        kind = TYPE_NAMES[type(data)]
        event = Event(id=event_id, source="/test", type=kind, subject=self.node, time=datetime.now(UTC), data=data)
        await self.bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)

    async def run(self) -> None:
        uuid = "GPU-1" if self.node == "n" else f"GPU-{self.node}"
        device = GpuDevice(uuid=uuid, index=0, model="m", tflops_milli=100_000, vram_bytes=2**34)
        await self.say(subjects.state("node", self.node), Node(name=self.node, pool="p"), f"node:{self.node}")
        inventory = GpuInventory(node=self.node, gpus=[device], observed_at=datetime.now(UTC))
        await self.say(subjects.state("gpu", self.node), inventory, f"gpu:{self.node}")
        while True:
            if self.muted:
                await asyncio.sleep(0.1)
                continue
            sample = GpuSample(uuid=uuid, temperature_c=self.celsius, sm_percent=50.0, vram_used_bytes=2**33)
            usage = NodeUsage(node=self.node, at=datetime.now(UTC), gpus=(sample,))
            await self.say(subjects.usage_gpu(self.node), usage, f"usage:{self.node}:{time.time_ns()}")
            await asyncio.sleep(0.2)


class Monitoring:
    """Recorder, alerter and notifier in this process, and what they say on the bus."""

    def __init__(self, bus: Bus, gpu: Gpu, alerter: Alerter, recorder: Recorder, store: DuckDBStore) -> None:
        self.bus, self.gpu, self.alerter, self.recorder, self.store = bus, gpu, alerter, recorder, store
        self.states: list[RuleState] = []
        self.notices: list[AlertNotice] = []

    def on_state(self, record: Record) -> None:
        if not record.deleted:
            self.states.append(codec.decode_as(RuleState, record.payload).data)

    def on_alert(self, record: Record) -> None:
        self.notices.append(codec.decode_as(AlertNotice, record.payload).data)


@asynccontextmanager
async def monitoring(
    bus: Bus, rules_path: Path, addresses: list[str], *, file: Path = MEMORY
) -> AsyncIterator[Monitoring]:
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        store = await DuckDBStore(file, clock=time.time).open()
        stack.push_async_callback(store.close)
        gpu = Gpu(bus)
        alerter, recorder = Alerter(bus, "a", store, rules=FileSource(rules_path)), Recorder(bus, "r", store)
        found = Monitoring(bus, gpu, alerter, recorder, store)
        followers = [
            Follower(bus, STATE, ["gpubus.state.alert.*"], found.on_state),
            Follower(bus, ALERT, ["gpubus.alert.>"], found.on_alert),
        ]
        for follower in followers:
            await follower.start()
            stack.push_async_callback(follower.stop)
        parts = [alerter.run(stop), recorder.run(stop)]
        if addresses:
            parts.append(Notifier(bus, "n", addresses).run(stop))
        tasks = [asyncio.create_task(part) for part in parts]
        heating = asyncio.create_task(gpu.run())
        try:
            yield found
        finally:
            await end(heating)
            stop.set()
            await asyncio.gather(*tasks)
            with contextlib.suppress(asyncio.CancelledError):
                await heating


def streak(state: RuleState) -> int:
    return state.streaks[0].count if state.streaks else 0


async def test_a_gpu_that_heats_up_rings_after_exactly_its_count_and_cools_down_again(bus: Bus, tmp_path: Path) -> None:
    port = free_port()
    async with (
        receiver() as webhook,
        alertmanager(tmp_path, config(webhook.port), port),
        monitoring(bus, rules(tmp_path / "rules.yaml"), [f"http://127.0.0.1:{port}"]) as found,
    ):
        await eventually(lambda: len(found.states) >= 1 and found.recorder.statistics().samples >= 2)
        assert found.notices == []
        found.gpu.celsius = 95
        await eventually(lambda: ("firing", "GPUTemperatureHigh", "GPU-1") in webhook.alerts, 30)
        found.gpu.celsius = 60
        await eventually(lambda: ("resolved", "GPUTemperatureHigh", "GPU-1") in webhook.alerts, 30)
        counts = [streak(state) for state in found.states]
        first_firing = next(n for n, state in enumerate(found.states) if state.notice is not None)
        assert counts[first_firing] == 3
        told = [(alert.status, notice.slot) for notice in found.notices for alert in notice.alerts]
        assert [status for status, _ in told].count("resolved") == 1
        assert told[0] == ("firing", found.states[first_firing].slot)
        (body,) = [body for body in webhook.bodies if body["status"] == "firing"][:1]
        annotations = body["alerts"][0]["annotations"]
        assert annotations["summary"] == "GPU GPU-1 on n is above 90°C"
        assert annotations["description"].startswith("GPU GPU-1 on node n in pool p averages 95.0°C")


@pytest.mark.slow
async def test_no_alert_is_over_while_its_agent_is_silent_though_other_agents_speak(bus: Bus, tmp_path: Path) -> None:
    path = rules(tmp_path / "rules.yaml", "2s", consecutive_count=1)
    async with monitoring(bus, path, []) as found:
        found.gpu.celsius = 95
        other = asyncio.create_task(Gpu(bus, "other").run())
        await eventually(lambda: found.notices, 30)
        found.gpu.muted = True
        await eventually(lambda: found.states[-1].streaks[0].silent_since is not None, 30)
        held = found.states[-1]
        await eventually(lambda: found.states[-1].slot >= held.slot + 4 * 10**9, 30)
        assert (streak(found.states[-1]), found.states[-1].failures) == (streak(held), 0)
        assert {alert.status for notice in found.notices for alert in notice.alerts} == {"firing"}
        assert any("node n has been silent" in a.annotations.get("note", "") for a in found.notices[-1].alerts)
        found.gpu.muted = False  # a new agent, and as hot as before
        await eventually(lambda: streak(found.states[-1]) > streak(held), 30)
        assert {alert.status for notice in found.notices for alert in notice.alerts} == {"firing"}
        found.gpu.celsius = 60
        await eventually(lambda: found.notices[-1].alerts[0].status == "resolved", 30)
        await end(other)


async def test_alerters_share_the_ticks_and_each_is_evaluated_once(bus: Bus, tmp_path: Path) -> None:
    path = rules(tmp_path / "rules.yaml", "1s", consecutive_count=1000)
    async with monitoring(bus, path, []) as found:
        found.gpu.celsius = 95
        stop = asyncio.Event()
        more = [Alerter(bus, f"more{n}", found.store) for n in range(2)]
        tasks = [asyncio.create_task(alerter.run(stop)) for alerter in more]
        await eventually(lambda: len(found.states) >= 4, 30)
        stop.set()
        await asyncio.gather(*tasks)
        states = found.states.copy()
        # An evaluation that came late, on a machine that was away, moves none.
        counts = [streak(state) for state in states if streak(state) and not state.failures]
        assert counts == list(range(counts[0], counts[0] + len(counts)))
        gaps = [after.slot - before.slot for before, after in pairwise(states)]
        assert min(gaps) > 500_000_000  # one evaluation for each tick of a second
        evaluations = [alerter.statistics().evaluations for alerter in (found.alerter, *more)]
        assert sum(evaluations) >= len(states)
        assert sum(count > 0 for count in evaluations) >= 2


async def test_a_tick_or_an_answer_that_is_late_moves_no_streak(bus: Bus, tmp_path: Path) -> None:
    class Slow:
        """A store that answers when nobody waits any more."""

        async def query(self, sql: str, *, timeout: float) -> Result:
            raise StoreUnavailableError(f"no answer within {timeout:.1f} s to {sql[:6]}")

    path = rules(tmp_path / "r.yaml", "2s", consecutive_count=1, query="SELECT 1 AS uuid")
    (rule,) = parse(path.read_bytes()).rules
    compiled = CompiledRule(rule)
    before = RuleState(rule=rule.name, digest=compiled.digest)
    before = evaluated(compiled, before, [{"uuid": "GPU-1", "node": "n", "pool": "p"}], slot=1)
    alerter = Alerter(bus, "late", Slow())
    for age_s, error in ((10.0, "the tick was taken 10.0 s late"), (1.5, "no answer within 0.5 s to SELECT")):
        slot = time.time_ns() - int(age_s * 1e9)
        after = await alerter._next(compiled, before, slot)
        assert (after.streaks, after.failures, after.error) == (before.streaks, 1, error)
        assert after.notice is not None  # what fires is kept firing
        assert [alert.status for alert in after.notice.alerts] == ["firing"]


async def test_an_alertmanager_that_is_away_gets_what_it_missed(bus: Bus, tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    addresses = [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"]
    async with (
        receiver() as webhook,
        monitoring(bus, rules(tmp_path / "r.yaml", "1s", consecutive_count=1), addresses) as found,
    ):
        found.gpu.celsius = 95
        await eventually(lambda: len(found.notices) >= 2, 20)
        async with alertmanager(tmp_path, config(webhook.port), second):  # one of two is enough
            await eventually(lambda: ("firing", "GPUTemperatureHigh", "GPU-1") in webhook.alerts, 20)
            found.gpu.celsius = 60
            await eventually(lambda: ("resolved", "GPUTemperatureHigh", "GPU-1") in webhook.alerts, 20)


async def test_rules_change_at_run_time_and_a_bad_set_changes_nothing_but_is_seen(bus: Bus, tmp_path: Path) -> None:
    path = rules(tmp_path / "rules.yaml", "1s", consecutive_count=1)
    async with monitoring(bus, path, []) as found:
        found.gpu.celsius = 95
        await eventually(lambda: any(streak(state) for state in found.states), 20)
        path.write_text("alertRules: [{name: X}]")
        book = found.alerter.rulebook
        await eventually(lambda: book.refusal is not None and bool(book.refusal.problems), 20)
        assert book.refusal is not None
        assert book.refusal.problems == tuple(
            f"rule X: missing required field `{field}`: write {fix}"
            for field, fix in (
                (
                    "query",
                    (
                        "text (in quotes where YAML takes it for something else), such as SELECT uuid FROM tf_gpu_usage "
                        "WHERE temperature > {{ .Threshold }} AND {{ .Conditions }}"
                    ),
                ),
                ("threshold", "a number without quotes, such as 80"),
                ("evaluationInterval", "text (in quotes where YAML takes it for something else), such as 30s"),
            )
        )
        assert set(book.rules) == {"GPUTemperatureHigh"}
        assert found.alerter.statistics().refused
        rules(path, "1s", consecutive_count=1, name="Renamed")
        await eventually(lambda: set(book.rules) == {"Renamed"}, 20)
        await eventually(lambda: not found.alerter.statistics().refused, 20)
        await eventually(lambda: any(state.rule == "Renamed" and streak(state) for state in found.states), 20)
        # What the old rule had firing is over.
        await eventually(
            lambda: any(n.rule == "GPUTemperatureHigh" and n.alerts[0].status == "resolved" for n in found.notices), 20
        )


def refused(problem: str, *, origin: str = "ConfigMap a/b", revision: int = 1) -> Offer:
    return Offer(origin, b"", revision, problem)


async def stored(bus: Bus, where: str) -> list[Record]:
    found, _ = await newest(bus, STATE, [where])
    return found


async def test_a_refusal_ends_with_the_next_good_set_and_older_words_of_a_source_change_nothing(
    bus: Bus, tmp_path: Path
) -> None:
    good = rules(tmp_path / "r.yaml").read_bytes()
    book = Rulebook(bus, "/b", None)
    await book.start()
    await book.take(refused("is not there", revision=7))
    assert book.refusal is not None
    assert book.refusal.problems == ("is not there",)
    await book.take(Offer("ConfigMap a/b", good, 6))  # a replica that lags behind
    await book.take(refused("was not there", revision=5))
    assert book.refusal.problems == ("is not there",)
    await book.take(Offer("ConfigMap a/b", good, 8))
    assert book.refusal.problems == ()
    assert set(book.rules) == {"GPUTemperatureHigh"}
    await book.take(refused("was wrong", revision=7))
    assert book.refusal.problems == ()
    await book.take(refused("other", origin="file"))
    await book.take(Offer("ConfigMap a/b", good, 9))
    assert book.refusal.problems == ()
    await book.stop()


async def test_a_rules_file_that_is_gone_or_no_file_is_refused_and_one_put_back_is_taken(
    bus: Bus, tmp_path: Path
) -> None:
    path, old = tmp_path / "r.yaml", tmp_path / "old.yaml"
    rules(old, name="Older")
    rules(path)
    source = FileSource(path)
    book = Rulebook(bus, "/b", source)
    await book.start()

    def problems() -> tuple[str, ...]:
        return book.refusal.problems if book.refusal is not None else ()

    async def watching_until(condition: Callable[[], bool]) -> None:
        watching = asyncio.create_task(book.watch())
        await eventually(condition)
        await end(watching)

    await watching_until(lambda: set(book.rules) == {"GPUTemperatureHigh"})
    path.unlink()
    await watching_until(lambda: problems() == (f"{path} cannot be read: No such file or directory",))
    rules(path)
    await watching_until(lambda: not problems())
    path.unlink()
    book._source = FileSource(path)  # as an alerter that starts while the file is gone
    await watching_until(lambda: "No such file" in "".join(problems()))
    book._source = source
    os.mkfifo(path)
    await watching_until(lambda: "it is no regular file" in "".join(problems()))
    path.unlink()
    path.symlink_to("/dev/zero")
    await watching_until(lambda: "it is no regular file" in "".join(problems()))
    path.unlink()
    path.symlink_to(old)  # written before the one in force
    await watching_until(lambda: set(book.rules) == {"Older"} and not problems())
    path.unlink()
    path.write_bytes(b"#" * (MOST_BYTES + 1))
    await watching_until(lambda: "it is larger than 4 MiB" in "".join(problems()))
    assert set(book.rules) == {"Older"}
    assert book.refusals == 4
    await book.stop()


@pytest.mark.parametrize("where", [ACTIVE, REFUSED])
async def test_records_of_rules_that_nobody_can_read_are_replaced(bus: Bus, tmp_path: Path, where: str) -> None:
    path = rules(tmp_path / "r.yaml")

    async def readable() -> bool:
        (record,) = await stored(bus, where)
        try:
            return decoded(RuleSet if where == ACTIVE else RuleRefusal, record.payload) is not None
        except UndecodableError:
            return False

    for source in (FileSource(path), None):
        book = Rulebook(bus, "/b", source)
        await book.start()
        watching = asyncio.create_task(book.watch())
        await eventually(lambda book=book: bool(book.rules))
        for junk in (b"{nonsense", b"{}"):
            before = (await bus.publisher.publish(where, junk)).seq
            async with asyncio.timeout(10):
                while not await readable():  # noqa: ASYNC110  the server tells nobody
                    await asyncio.sleep(0.02)
            (record,) = await stored(bus, where)
            assert record.seq > before
        assert set(book.rules) == {"GPUTemperatureHigh"}  # those in force stay
        await end(watching)
        await book.stop()


async def broken(sql: str, *, timeout: float) -> None:
    raise StoreUnavailableError(f"no answer within {timeout:g} s to {sql[:6]}")


async def test_built_in_rules_give_way_to_written_ones_whoever_starts_first(bus: Bus, tmp_path: Path) -> None:
    path = rules(tmp_path / "rules.yaml", name="Written")
    early, late, writer = Rulebook(bus, "/e", None), Rulebook(bus, "/l", None), Rulebook(bus, "/w", FileSource(path))
    await early.start()
    assert len(early.rules) == 15
    await writer.start()
    await writer.take(await anext(FileSource(path).offers()))
    await late.start()
    await late._offer(built_in(), BUILT_IN, 0)  # it had looked before the rules were written
    await eventually(lambda: all(set(book.rules) == {"Written"} for book in (early, late, writer)))
    for book in (early, late, writer):
        await book.stop()


async def test_a_store_that_is_away_moves_no_streak_and_is_told_after_three_evaluations(
    bus: Bus, tmp_path: Path
) -> None:
    async with monitoring(bus, rules(tmp_path / "r.yaml", "1s", consecutive_count=2), []) as found:
        found.gpu.celsius = 95
        await eventually(lambda: any(streak(state) == 1 for state in found.states), 20)
        query, found.store.query = found.store.query, broken
        await eventually(lambda: found.states[-1].failures >= 3, 20)
        held = streak(found.states[-1])
        assert len({streak(state) for state in found.states[-3:]}) == 1
        own = [a for n in found.notices for a in n.alerts if a.labels["alertname"] == "AlertRuleFailing"]
        await eventually(lambda: bool(found.notices), 5)
        found.store.query = query
        await eventually(lambda: found.states[-1].failures == 0, 20)
        assert streak(found.states[-1]) == held + 1
        own = [a for n in found.notices for a in n.alerts if a.labels["alertname"] == "AlertRuleFailing"]
        assert own
        assert own[0].labels["instance"] == "GPUTemperatureHigh"


async def test_metrics_that_somebody_deletes_end_no_alert(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "m.duckdb"
    async with monitoring(bus, rules(tmp_path / "r.yaml", "2s", consecutive_count=1), [], file=file) as found:
        found.gpu.celsius = 95
        await eventually(lambda: bool(found.states) and streak(found.states[-1]) >= 2, 30)
        file.unlink()
        await eventually(lambda: found.recorder.statistics().lost_rows > 0, 30)
        assert found.recorder.unready() == ""  # it goes on
        before = streak(found.states[-1])
        await eventually(lambda: not found.states[-1].failures and streak(found.states[-1]) > before, 30)
        assert {alert.status for notice in found.notices for alert in notice.alerts} == {"firing"}


def test_both_methods_of_the_guide_name_their_alertmanager() -> None:
    method_a, method_b = (msgspec.yaml.decode(text) for text in (METHOD_A, METHOD_B))
    assert alertmanagers_from_values(method_a, namespace="tensor-fusion-sys") == [
        "http://alert-manager.tensor-fusion-sys.svc.cluster.local:9093"
    ]
    assert alertmanagers_from_values(method_b, namespace="x") == [
        "http://<alertmanager-service>.<namespace>.svc.cluster.local:9093"
    ]
    with pytest.raises(SettingError, match=r"alert\.enabled is false"):
        alertmanagers_from_values({"alert": {"enabled": False}}, namespace="x")


def test_a_firing_alert_is_told_whatever_the_clock_of_the_notifier_says() -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    alert = Alert(
        status="firing", fingerprint="f", labels={}, annotations={"a": "b", "c": ""}, starts_at=at, ends_at=at
    )
    assert payload(AlertNotice(rule="r", slot=1, alerts=(alert,))) == [
        {
            "labels": {},
            "annotations": {"a": "b"},
            "startsAt": "2020-01-01T00:00:00.000Z",
            "endsAt": "2020-01-01T00:00:00.000Z",
        }
    ]


async def test_an_address_without_its_protocol_is_refused(bus: Bus) -> None:
    with pytest.raises(ValueError, match=r"'alertmanager:9093' needs http:// or https://"):
        Notifier(bus, "n", ["alertmanager:9093"])
