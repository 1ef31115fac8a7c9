"""Rules as users write them: what is taken, what is refused, and the fifteen built-in ones at work."""

import time
from importlib.resources import files

import pytest

from consumers.alerter.configuration import parse
from consumers.alerter.lint import warnings
from consumers.alerter.rules import CompiledRule, RulesError
from consumers.alerter.sql import at_instant, check_reads, tables
from consumers.alerter.streaks import evaluated
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.tables import GPU_USAGE, NODE_METRICS, SYSTEM_METRICS, TABLES, WORKER_USAGE, Row, Table
from schemas.alert import RuleState

BUILTIN = files("consumers.alerter").joinpath("builtin.yaml").read_text()

GUIDE = """
dynamicConfig:
  alertRules:
    # ... 从 values.yaml 复制的全部内置规则 ...

    - name: GPUTemperatureWarning
      query: |
        SELECT node, pool, uuid, avg(temperature) AS avg_temperature
        FROM tf_gpu_usage
        WHERE temperature > {{ .Threshold }} AND {{ .Conditions }}
        GROUP BY node, pool, uuid
      threshold: 80
      evaluationInterval: 30s
      consecutiveCount: 3
      severity: P2
      summary: "GPU temperature above {{ .Threshold }}°C on {{ .node }} {{ .uuid }}"
      description: "GPU {{ .uuid }} on node {{ .node }} in pool {{ .pool }} averages {{ .avg_temperature }}°C"
      alertTargetInstance: "{{ .uuid }}"
      runbookURL: "https://<your-runbook-url>"
"""
"""Pasted from the production guide, step 3."""

RULE = {
    "name": "Hot",
    "query": "SELECT uuid FROM tf_gpu_usage WHERE {{ .Conditions }}",
    "threshold": 1,
    "evaluationInterval": "30s",
}


def rules(**changes) -> str:
    import msgspec

    return msgspec.json.encode([{**RULE, **changes}]).decode()


def test_the_rule_of_the_guide_is_taken_as_it_stands() -> None:
    (rule,) = parse(GUIDE).rules
    assert (rule.name, rule.threshold, rule.consecutive_count, rule.severity) == ("GPUTemperatureWarning", 80, 3, "P2")
    compiled = CompiledRule(rule)
    assert "WHERE temperature > 80 AND ts >= now() - '30s'::INTERVAL" in compiled.sql()
    row = {"node": "n", "pool": "p", "uuid": "GPU-1", "avg_temperature": 85.5}
    state = RuleState(rule=rule.name, digest=compiled.digest)
    for slot in (1, 2, 3):
        state = evaluated(compiled, state, [row], slot=slot * 30_000_000_000)
    assert state.notice is not None
    (alert,) = state.notice.alerts
    assert alert.labels == {
        "alertname": "GPUTemperatureWarning", "severity": "P2", "job": "tensor-fusion", "instance": "GPU-1"
    }  # fmt: skip
    assert alert.annotations == {
        "summary": "GPU temperature above 80°C on n GPU-1",
        "description": "GPU GPU-1 on node n in pool p averages 85.5°C",
        "runbook_url": "https://<your-runbook-url>",
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"evaluationInterval": "30"}, "evaluationInterval: '30' is no duration: write one such as 30s"),
        ({"evaluationInterval": "500ms"}, "evaluationInterval is 500ms: use whole seconds"),
        ({"threshold": "hot"}, "threshold is 'hot': write a number without quotes"),
        ({"consecutiveCount": "3"}, "consecutiveCount is '3': write a whole number without quotes"),
        ({"threshold": None}, "threshold is null: write a number without quotes, such as 80"),
        (
            {"evaluationInterval": 30},
            "something else), such as 30s",
        ),
        ({"severity": 2}, "severity is 2: write text (in quotes where YAML takes it for something else)"),
        ({"consecutiveCount": 0}, "consecutiveCount is 0: use 1 to 1000"),
        ({"consecutivecount": 3}, "unknown field `consecutivecount`: did you mean `consecutiveCount`?"),
        ({"color": 3}, "unknown field `color`: there are name, query, threshold, evaluationInterval, consecutiveCount"),
        ({"summary": "{{ .a"}, "summary: line 1, column 6: action is not closed"),
        ({"query": "SELECT {{ .Treshold }}"}, "query: line 1, column 11: .Treshold is not known here"),
        ({"query": "DELETE FROM tf_gpu_usage"}, "Only SELECT statements"),
        ({"query": "SELECT 1; SELECT 2"}, "query holds 2 statements"),
        ({"query": "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x"}, "query does more than read: DELETE"),
        ({"query": "SELECT * FROM read_text('/etc/passwd')"}, "the table function read_text"),
        ({"query": "SELEC 1"}, "query does not parse at character 1"),
        ({"name": ""}, "name '': write 1 to 200"),
    ],
)
def test_a_bad_rule_is_refused_with_its_name_the_field_and_the_reason(changes: dict, problem: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse(rules(**changes))
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"rule {changes.get('name', 'Hot')}")


def test_all_problems_of_a_rule_are_named_at_once() -> None:
    changes = {
        "threshold": "hot", "consecutiveCount": 0, "evaluationInterval": "1 s", "severity": 2, "sumary": "x",
        "query": "SELEC {{ .Threshold }} FROM t WHERE {{ .Conditions }}", "description": "{{ .a", "summary": "{{ .b",
    }  # fmt: skip
    with pytest.raises(RulesError) as caught:
        parse(rules(**changes))
    problems = caught.value.problems
    for says in (
        "unknown field `sumary`", "threshold is 'hot'", "severity is 2", "consecutiveCount is 0", "evaluationInterval: '1 s'",
        "query: query does not parse at character 1", "description: line 1", "summary: line 1",
    ):  # fmt: skip
        assert [problem for problem in problems if says in problem], says
    assert len(problems) == len(changes)
    assert all(problem.startswith("rule Hot: ") for problem in problems)


def test_a_rule_without_name_is_known_by_its_place_and_what_it_lacks_is_named() -> None:
    with pytest.raises(RulesError) as caught:
        parse(
            '[{"threshold": 1}, 7, {"name": ["x"], "query": "DROP TABLE a", "threshold": .inf, "evaluationInterval": "x"}]'
        )
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        *["rule number 1"] * 3, "rule number 2", *["rule number 3"] * 4
    ]  # fmt: skip
    text = str(caught.value)
    for says in (
        "missing required field `query`",
        "threshold is inf",
        "Only SELECT",
        "it is 7: write an object with name",
    ):
        assert says in text


def test_all_problems_of_a_set_are_named_and_none_of_it_is_taken() -> None:
    twice = f"[{rules(threshold='x')[1:-1]}, {rules()[1:-1]}, {rules()[1:-1]}]"
    with pytest.raises(RulesError) as caught:
        parse(twice)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["rule Hot", "rule Hot"]
    for text, says in (
        ("{", "is no YAML"),
        ("a: 1", "no rules: write a list under alertRules"),
        ("alertRules: 3", "alertRules is 3: write a list"),
        ("dynamicConfig: {alertRules: }", "alertRules is null: write a list"),
        ("x", "no rules"),
        ("metricsExtraPodLabels: [1]\nalertRules: []", "metricsExtraPodLabels is [1]: write up to 16"),
    ):
        with pytest.raises(RulesError) as caught:
            parse(text)
        assert says in str(caught.value)


def test_a_query_can_be_asked_as_of_another_time() -> None:
    sql = "SELECT 'now()', now(), current_timestamp FROM a WHERE b > now() - '1s'::INTERVAL -- now()"
    then = "'2026-01-01 00:00:00'::TIMESTAMP"
    expected = f"SELECT 'now()', {then}, {then} FROM a WHERE b > {then} - '1s'::INTERVAL -- now()"
    assert at_instant(sql, "2026-01-01 00:00:00") == expected
    check_reads(expected)
    assert tables("WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN b USING (x)") == {"a", "b"}
    for body in ("main.a", "a"):  # a definition that hides its table reads it all the same
        assert tables(f"WITH a AS (SELECT * FROM {body}) SELECT * FROM a") == {"a"}
    assert tables("WITH a AS (SELECT 1 AS x) SELECT x FROM a") == set()


def series(table: Table, every_s: float, count: int, columns, **tags) -> dict[Table, list[Row]]:
    """Rows with times before now; ``columns(n)`` gives the fields of the n-th, the newest being 0."""
    return {table: [table.row(-int(n * every_s * 1000), **tags, **columns(n)) for n in range(count)]}


def dated(rows: dict[Table, list[Row]]) -> dict[Table, list[Row]]:
    now = int(time.time() * 1000)
    return {table: [(now + row[0], *row[1:]) for row in batch] for table, batch in rows.items()}


WORKER = {"workload": "w", "worker": "pod-1", "uuid": "GPU-1", "node": "n", "pool": "p"}
GPU = {"uuid": "GPU-1", "node": "n", "pool": "p"}
NODE = {"node": "n", "pool": "p", "phase": "Running"}


def node(column: str, percent: float) -> dict[Table, list[Row]]:
    return series(NODE_METRICS, 10, 6, lambda _: {column: percent}, **NODE)


def gpu(**fields) -> dict[Table, list[Row]]:
    return series(GPU_USAGE, 5, 6, lambda _: fields, **GPU)


IDLE = gpu(compute_percentage=0.5, memory_percentage=1.0)
TFLOPS, VRAM = "allocated_tflops_percent_virtual", "allocated_vram_percent_virtual"
CASES = {
    # Counters grow by one from sample to sample, or stay.
    "WorkerTFlopsThrottled": (
        series(WORKER_USAGE, 5, 3, lambda n: {"compute_throttled_cnt": 9 - n}, **WORKER),
        series(WORKER_USAGE, 5, 3, lambda _: {"compute_throttled_cnt": 9}, **WORKER),
    ),
    "WorkerVRAMSwitchCountIncreasing": (
        series(WORKER_USAGE, 5, 9, lambda n: {"vram_resumed_cnt": 99 - n}, **WORKER),
        series(WORKER_USAGE, 5, 9, lambda _: {"vram_resumed_cnt": None}, **WORKER),
    ),
    "WorkerAllocationFailed": (
        series(SYSTEM_METRICS, 10, 3, lambda n: {"total_allocation_fail_cnt": 5 - n}, pool="p"),
        series(SYSTEM_METRICS, 10, 3, lambda _: {"total_allocation_fail_cnt": 5}, pool="p"),
    ),
    "GPUVRAMFull": (gpu(memory_percentage=97.5), gpu(memory_percentage=97.0)),
    "GPUTFlopsFull": (gpu(compute_percentage=99.0), gpu(compute_percentage=50.0)),
    "GPUTemperatureHigh": (gpu(temperature=91.0), gpu(temperature=90.0)),
    "NodeTFlopsAllocationCritical": (node(TFLOPS, 95.5), node(TFLOPS, 94.5)),
    "NodeTFlopsAllocationWarning": (node(TFLOPS, 90.5), node(TFLOPS, 89.5)),
    "PoolTotalTFlopsAllocationCritical": (node(TFLOPS, 95.5), node(TFLOPS, 94.5)),
    "PoolTotalTFlopsAllocationWarning": (node(TFLOPS, 90.5), node(TFLOPS, 89.5)),
    "NodeVRAMAllocationCritical": (node(VRAM, 95.5), node(VRAM, 94.5)),
    "NodeVRAMAllocationWarning": (node(VRAM, 90.5), node(VRAM, 89.5)),
    "PoolVRAMAllocationWarning": (node(VRAM, 90.5), node(VRAM, 89.5)),
    "EmptyGPU": (
        node(TFLOPS, 0.0),
        {**node(TFLOPS, 50.0), **series(WORKER_USAGE, 5, 6, lambda _: {"compute_percentage": 1.0}, **WORKER)},
    ),
    "IdleGPU": (IDLE, gpu(compute_percentage=0.5, memory_percentage=9.0)),
}


async def test_each_built_in_rule_fires_after_its_count_and_not_without_cause() -> None:
    compiled = {rule.name: CompiledRule(rule) for rule in parse(BUILTIN).rules}
    assert compiled.keys() == CASES.keys()
    store = await DuckDBStore(MEMORY, clock=time.time).open()
    for name, (fires, stays_silent) in CASES.items():
        rule = compiled[name]
        assert tables(rule.sql()) <= TABLES.keys()
        for rows, expected in ((fires, True), (stays_silent, False)):
            await store.write(dated(rows))
            found = (await store.query(rule.sql(), timeout=5)).named()
            state = RuleState(rule=name, digest=rule.digest)
            for slot in range(1, rule.rule.consecutive_count + 1):
                assert state.notice is None, f"{name} fires too early"
                state = evaluated(rule, state, found, slot=slot * 10**10)
            assert (state.notice is not None) is expected, f"{name}: {found}"
            if state.notice is not None:
                (alert,) = state.notice.alerts
                assert "no value" not in str(alert)
                assert alert.labels["instance"] in ("GPU-1", "n", "p", "pod-1-GPU-1")
            for table in rows:
                await store._file.write(_clear, store, table)
    await store.close()


def _clear(store: DuckDBStore, table: Table) -> None:
    store._file.connection.execute(f"DELETE FROM {table.name}").fetchall()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nalertRules: *b", "is a YAML alias"),  # ten such lines stand for gigabytes
        ("- {name: A, name: B}", "'' stands twice in one object"),
        ("[" * 100 + "]" * 100, "is nested deeper than 64 levels"),
    ],
)
def test_yaml_that_stands_for_more_or_less_than_it_says_is_refused(text, words):
    with pytest.raises(RulesError) as refused:
        parse(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"query": "SELECT uuid FROM tf_gpu_usge"},
            "query: it would fail on the nine tf_* tables: Catalog Error: Table with",
        ),
        ({"query": "SELECT temprature FROM tf_gpu_usage"}, 'Candidate bindings: "temperature"'),
        ({"query": "SELECT uuid FROM tf_worker_usage WHERE team = 'x'"}, '"team" not found'),
        (
            {"summary": "{{ .Conditions }}"},
            "summary: .Conditions would be printed as <no value>: there are Threshold, uuid",
        ),
        (
            {
                "description": "{{ if gt (len .a) 1 }}{{ with .uuid }}{{ $.b }}{{ end }}{{ else }}{{ printf `%s` .c }}{{ end }}"
            },
            ("description: .a would", "description: .b would", "description: .c would"),
        ),
        ({"alertTargetInstance": "{{ .uuid }} {{ .Threshold }}"}, ()),
    ],
)
def test_what_a_good_rule_cannot_mean_is_a_warning(changes: dict, says: str | tuple[str, ...]) -> None:
    found = warnings(parse(rules(**changes)))
    expected = (says,) if isinstance(says, str) else says
    assert len(found) == len(expected)
    for warning, part in zip(found, expected, strict=True):
        assert warning.startswith("rule Hot: ")
        assert part in warning


def test_built_in_rules_and_those_over_tags_of_their_own_have_no_warnings_and_no_rules_have_one() -> None:
    assert warnings(parse(BUILTIN)) == []
    assert warnings(parse(GUIDE)) == []
    own = f"metricsExtraPodLabels: {{a/team: team}}\nalertRules: {rules(query='SELECT team AS uuid FROM tf_worker_usage')}"
    assert warnings(parse(own)) == []
    assert warnings(parse("alertRules: []")) == [
        "there are no rules: nothing would be watched; leave alertRules out to keep the built-in ones"
    ]
