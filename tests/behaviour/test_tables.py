"""Every column of the nine tables: described, and filled as described."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import consumers.metrics
from bus import subjects
from bus.connection import Bus
from consumers.alerter.configuration import parse
from consumers.alerter.rules import RulesError
from consumers.metrics.settings import store as open_store
from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import OF_WORKERS, TABLES, WORKER_USAGE
from consumers.recorder.topology import Verdict, farthest, verdict
from schemas import reasons
from schemas.alert import RuleSet
from schemas.capacity import PoolCapacity
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Basis, Decision, FilterReport, GpuGrant
from schemas.hardware import GpuLink
from schemas.kube.resources import CustomResource
from schemas.placement import TopologyRules
from tests.behaviour.test_recorder import Cluster, ask, recording, snapshot
from tests.conftest import eventually
from tests.stores.greptime import GreptimeStandIn

TEXT = Path(consumers.metrics.__file__).with_name("TABLES.md").read_text()
CONSTANT = {"always 0": 0, "always empty": ""}


def described() -> dict[str, dict[str, str]]:
    """Return what the description says of each column, by table."""
    parts = re.split(r"^## (\w+)$", TEXT, flags=re.MULTILINE)[1:]
    rows = re.compile(r"^\| (\w+) \| (.+) \|$", re.MULTILINE)
    return {
        name: {column: words for column, words in rows.findall(text) if column != "column"}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_description_names_every_column_and_no_other() -> None:
    found = described()
    assert found.keys() == TABLES.keys()
    for table in TABLES.values():
        assert sorted(found[table.name]) == sorted([*table.tags, *table.fields]), table.name


async def fill(cluster: Cluster) -> None:
    """Say something of everything that the tables tell."""
    await cluster.start()
    metadata = [{"model": "A100", "fullModelName": "A100", "costPerHour": "1.8"}]
    provider = {"vendor": "NVIDIA", "images": {"middleware": "m"}, "hardwareMetadata": metadata}
    resource = CustomResource(plural="providerconfigs", name="nvidia", spec=provider)
    await cluster.say(subjects.state("config", "providerconfigs", "", "nvidia"), resource, "provider")
    await cluster.say(subjects.state("pool", "p"), Pool(name="p", topology=TopologyRules(mode="hard")), "topology")


async def decide(cluster: Cluster, number: int, **changes: object) -> None:
    decision = Decision(
        outcome="allocated", namespace="d", name=f"pod-{number}", pod_uid=str(number), pool="p", allocator="a",
        basis=Basis(state=1, ledger=1, ordinal=1), node="n", message="m",
    )  # fmt: skip
    await cluster.say(
        subjects.decision("d", decision.name), msgspec.structs.replace(decision, **changes), f"d:{number}"
    )


async def test_every_column_is_filled_unless_the_description_says_why_not(bus: Bus) -> None:
    tables = await open_store("duckdb::memory:").open()
    cluster = Cluster(bus)
    await fill(cluster)
    async with recording(bus, tables) as (recorder,):
        clocks = dict.fromkeys(("graphics_clock_mhz", "sm_clock_mhz", "memory_clock_mhz", "video_clock_mhz"), 1000) | {
            "temperature_c": 80,
            "power_mw": 250_500,
            "pcie_rx_bytes": 1,
            "pcie_tx_bytes": 2,
        }
        await cluster.use(time.time(), nvlink_rx_bytes=3, nvlink_tx_bytes=4, **clocks)
        now = datetime.now(UTC)
        for number, claims in enumerate((("a", "b"), ("b", "c", "d"))):
            capacity = PoolCapacity(pool="p", claims=dict.fromkeys(claims, now))
            await cluster.say(subjects.state("capacity", "p"), capacity, f"capacity:{number}")
            await eventually(
                lambda claims=claims: (
                    "p" in recorder.view.capacities and tuple(recorder.view.capacities["p"].claims) == claims
                )
            )
            await snapshot(bus)
            await eventually(lambda number=number: recorder.statistics().writes >= 2 + number)
        first, second = (GpuGrant(uuid=f"GPU-{i}", index=i, tflops_milli=1, vram_bytes=1) for i in (0, 1))
        await decide(cluster, 1, gpus=(first,))
        await decide(cluster, 2, gpus=(first, second))  # of which nobody knows how near they are
        await decide(cluster, 3, outcome="unschedulable", filters=(FilterReport(reason=reasons.TOPOLOGY, nodes=1),))
        writes = recorder.statistics().writes
        await snapshot(bus)
        await eventually(lambda: recorder.statistics().writes > writes)
        for table, columns in described().items():
            for column, words in columns.items():
                values = {row[column] for row in await ask(tables, f"SELECT {column} FROM {table}")}
                constant = next((value for start, value in CONSTANT.items() if words.startswith(start)), None)
                if constant is not None:
                    assert values == {constant}, f"{table}.{column}"
                else:
                    assert values - {None, "", 0}, f"{table}.{column} is never filled"
        (row,) = await ask(tables, "SELECT * FROM tf_system_metrics ORDER BY ts DESC LIMIT 1")
        assert (row["total_scale_up_cnt"], row["total_scale_down_cnt"]) == (2, 1)
        assert {name: row[f"total_topo_{name}_cnt"] for name in ("satisfied", "unsatisfied", "fallback")} == {
            "satisfied": 1, "unsatisfied": 2, "fallback": 1
        }  # fmt: skip
    await tables.close()


def inventory(*links: GpuLink, numa: tuple[int, ...] = (0, 0, 1)) -> GpuInventory:
    gpus = [
        GpuDevice(uuid=f"G{i}", index=i, model="m", tflops_milli=1, vram_bytes=1, numa_node=node)
        for i, node in enumerate(numa)
    ]
    return GpuInventory(node="n", gpus=gpus, observed_at=datetime.now(UTC), links=links)


def test_how_near_gpus_are_is_told_by_links_and_else_by_numa_nodes() -> None:
    linked = inventory(GpuLink(0, 1, "node", 4), GpuLink(0, 2, "system"), GpuLink(1, 2, ""))
    for uuids, source, tier in (
        (("G0",), "auto", 0),
        (("G0", "G1"), "auto", 0),
        (("G0", "G1"), "numa", 1),
        (("G0", "G1", "G2"), "auto", 2),
        (("G1", "G2"), "auto", 2),
    ):
        assert farthest(linked, uuids, source) == tier, uuids
    assert farthest(inventory(numa=(-1, 0, 1)), ("G0", "G1"), "auto") == 3


def test_a_decision_without_rules_or_for_other_reasons_says_nothing_of_topology() -> None:
    decision = Decision(
        outcome="unschedulable", namespace="d", name="a", pod_uid="u", pool="p", allocator="a",
        basis=Basis(state=1, ledger=1, ordinal=1), filters=(FilterReport(reason=reasons.GPU_UNHEALTHY, nodes=1),),
    )  # fmt: skip
    assert verdict(decision, TopologyRules(), None) == Verdict()
    assert verdict(msgspec.structs.replace(decision, outcome="allocated"), None, None) == Verdict()


async def test_a_pool_runs_when_all_its_nodes_do(bus: Bus) -> None:
    tables = await open_store("duckdb::memory:").open()
    cluster = Cluster(bus)
    await cluster.start()
    least = {"nodeManagerConfig": {}, "capacityConfig": {"minResources": {"tflops": "100", "vram": "0"}}}
    for pool in ("empty", "wanting"):
        await cluster.say(subjects.state("pool", pool), Pool(name=pool), f"pool:{pool}")
    resource = CustomResource(plural="gpupools", name="wanting", spec=least)
    await cluster.say(subjects.state("config", "gpupools", "", "wanting"), resource, "least")

    async def phases(writes: int) -> dict[str, str]:
        await snapshot(bus)
        await eventually(lambda: recorder.statistics().writes > writes)
        sql = "SELECT pool, phase FROM tf_pool_metrics WHERE ts = (SELECT max(ts) FROM tf_pool_metrics)"
        return {row["pool"]: row["phase"] for row in await ask(tables, sql)}

    async with recording(bus, tables) as (recorder,):
        assert await phases(0) == {"p": "Running", "empty": "Running", "wanting": "Updating"}
        await cluster.say(subjects.state("node", "m"), Node(name="m", pool="p"), "node m")  # no GPUs so far
        await eventually(lambda: "m" in recorder.view.nodes)
        assert (await phases(recorder.statistics().writes))["p"] == "Updating"
    await tables.close()


async def extra(store: MetricsStore, bus: Bus) -> None:
    cluster, began = Cluster(bus), time.time()
    await cluster.start()

    async def say(revision: int, **labels: str) -> None:
        rules = RuleSet(digest="", origin="t", revision=revision, rules=(), extra_pod_labels=labels)
        await cluster.say(subjects.state("rules", "active"), rules, f"rules:{revision}")

    async with recording(bus, store) as (recorder,):
        for number, labels in enumerate(({}, {"tensor-fusion.ai/workload": "job", "nobody/has": "other"}, {})):
            await say(number, **labels)
            tags = WORKER_USAGE.tags + tuple(sorted(labels.values()))
            await eventually(lambda tags=tags: recorder.view.worker_usage.tags == tags)
            writes = recorder.statistics().writes
            await cluster.use(began + number / 100)
            await snapshot(bus)
            await eventually(lambda writes=writes: recorder.statistics().writes >= writes + 2)
        for table in OF_WORKERS:
            rows = await ask(store, f"SELECT job, other FROM {table.name} ORDER BY ts")
            assert [row["job"] or "" for row in rows] == ["", "train", ""], table.name
            assert not any(row["other"] for row in rows)


@pytest.mark.parametrize("kind", ["duckdb", "stand-in"])
async def test_labels_of_pods_become_tags_while_it_runs(bus: Bus, kind: str, tmp_path: Path) -> None:
    async with GreptimeStandIn() as stand_in:
        store = await open_store(stand_in.url if kind == "stand-in" else f"duckdb:{tmp_path}/m.duckdb").open()
        await extra(store, bus)
        await store.close()


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("{a: Job}", "metricsExtraPodLabels is {'a': 'Job'}: write up to 16 labels"),
        ("{a: 'x; DROP TABLE y'}", "metricsExtraPodLabels is {'a': 'x; DROP TABLE y'}: write"),
        ("{a: node}", "metricsExtraPodLabels: node is a column already"),
        ("{a: x, b: x}", "metricsExtraPodLabels: two labels have the tag x"),
        ("[a]", "metricsExtraPodLabels is ['a']: write up to 16 labels"),
    ],
)
def test_a_tag_that_cannot_be_a_column_is_refused(labels: str, problem: str) -> None:
    text = f"alertRules: []\nmetricsExtraPodLabels: {labels}\n"
    with pytest.raises(RulesError, match=re.escape(problem)):
        parse(text)
    assert parse("alertRules: []\nmetricsExtraPodLabels: {a/b: c_1}\n").extra_pod_labels == {"a/b": "c_1"}
