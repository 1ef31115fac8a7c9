"""Which alerts would have fired follows from what would have stood where, and from nothing else."""

from datetime import UTC, datetime

import msgspec

from bus import codec, subjects
from bus.follower import Record
from consumers.allocator.shadow.rules import Rules
from deploy.replay.alerts import Chronicle, Rulebook, Tally
from deploy.replay.scenario import Alarm, Result, Scenario
from schemas.alert import AlertRule
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.event import Event, utc
from schemas.journal import Free, Place, Turn
from schemas.pod import GpuRequest
from schemas.registry import TYPE_NAMES

BEGIN_S = 1_000_000_000
NOW = datetime(2026, 11, 30, tzinfo=UTC)
NS = 1_000_000_000
FULL = AlertRule(
    name="NodeFull",
    query="SELECT node, pool, avg(allocated_tflops_percent_virtual) AS used FROM tf_node_metrics WHERE {{ .Conditions }} "
    "GROUP BY node, pool HAVING avg(allocated_tflops_percent_virtual) > {{ .Threshold }}",
    threshold=95,
    evaluation_interval="30s",
    consecutive_count=2,
    severity="P0",
    summary="{{ .node }} is full",
    alert_target_instance="{{ .node }}",
)
FAILED = AlertRule(
    name="Refused",
    query="SELECT pool FROM tf_system_metrics WHERE {{ .Conditions }} GROUP BY pool "
    "HAVING max(total_allocation_fail_cnt) - min(total_allocation_fail_cnt) > {{ .Threshold }}",
    threshold=0,
    evaluation_interval="30s",
    alert_target_instance="{{ .pool }}",
)
SAMPLED = msgspec.structs.replace(FULL, name="Hot", query="SELECT node FROM tf_gpu_usage")
LIMITED = msgspec.structs.replace(FULL, name="Limited", query="SELECT sum(limited_tflops) AS x FROM tf_node_metrics")
RARE = msgspec.structs.replace(FULL, name="Rare", evaluation_interval="1h")
WRONG = msgspec.structs.replace(FULL, name="Wrong", query="SELECT nothing FROM tf_node_metrics")
REQUEST = GpuRequest(pool="p", count=1, tflops_milli=100_000, vram_bytes=1 << 30)


def said(seq: int, kind: str, name: str, data) -> Record:
    event = Event(id=str(seq), source="/test", type=TYPE_NAMES[type(data)], subject=name, time=NOW, data=data)
    return Record(subjects.state(kind, name), seq, codec.encode(event))


def cluster() -> list[Record]:
    records = [said(1, "pool", "p", Pool(name="p"))]
    for number, node in enumerate(("a", "b"), 1):
        gpu = GpuDevice(uuid=f"G{node}", index=0, model="X", tflops_milli=100_000, vram_bytes=80 << 30)
        records.append(said(2 * number, "node", node, Node(name=node, pool="p")))
        records.append(said(2 * number + 1, "gpu", node, GpuInventory(node=node, gpus=[gpu], observed_at=NOW)))
    return records


async def played(rules: Rules, *wanted: AlertRule) -> Result:
    """Three pods want a GPU each of a cluster that has two; all end after four minutes."""
    book, tally = Rulebook(wanted), Tally()
    scenario = Scenario(rules.name, rules.apply, tally.note)
    chronicle = Chronicle(book, rules.apply, scenario.standing, tally)
    for record in cluster():
        scenario.on_state(record)
        chronicle.on_state(record)
    steps = {5: [Place("ns", "one", "u1", REQUEST)], 65: [Place("ns", "two", "u2", REQUEST)]}
    steps |= {125: [Place("ns", "three", "u3", REQUEST)], 245: [Free(f"u{n}", "") for n in (3, 2, 1)]}
    for at in (0, *steps, 400):
        now = (BEGIN_S + at) * NS
        await chronicle.reach(now)
        scenario.play(Turn(allocator="x", number=1, decided=0, engine="1", steps=tuple(steps.get(at, ()))), now)
    await chronicle.judge((BEGIN_S + 400) * NS, scenario.result)
    return scenario.result


async def test_alerts_fire_where_the_rules_would_have_found_them() -> None:
    def at(seconds: int) -> datetime:
        return utc(BEGIN_S + seconds)

    found = await played(Rules("as it was"), FULL, FAILED)
    assert found.alerts_unknown == []
    assert [(alarm.rule, alarm.severity, alarm.summary) for alarm in found.alerts if alarm.rule == "NodeFull"] == [
        ("NodeFull", "P0", "a is full"),
        ("NodeFull", "P0", "b is full"),
    ]
    first, second, refused = found.alerts
    assert (first.instance, second.instance, refused.instance) == ("a", "b", "p")
    # Each thirty seconds the last thirty are looked at, and the second time in a row counts.
    assert (first.fired, second.fired) == (at(60), at(150))
    assert first.ended == second.ended == at(270)
    assert refused == Alarm("Refused", "", "p", "", at(150), at(180))
    other = await played(Rules("more", None, {"tflops_ratio": 400}), FULL, FAILED)
    assert (other.placed, other.alerts, other.alerts_unknown) == (3, [], [])


async def test_what_only_what_ran_could_tell_is_not_known() -> None:
    found = await played(
        Rules("as it was"), SAMPLED, LIMITED, RARE, WRONG, msgspec.structs.replace(FULL, query="DROP x")
    )
    why = {one.rule: one.why for one in found.alerts_unknown}
    assert found.alerts == []
    assert why.keys() == {"Hot", "Limited", "Rare", "Wrong", "NodeFull"}
    assert "tf_gpu_usage can only be told by what ran" in why["Hot"]
    assert "limited_tflops can only be told by what ran" in why["Limited"]
    assert "shorter than 3600 s" in why["Rare"]
    assert "13 of 13 evaluations failed" in why["Wrong"]
    assert "no SELECT" in why["NodeFull"]
