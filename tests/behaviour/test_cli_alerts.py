"""``gpubus alerts``: what people see of rules, and what they can try."""

import asyncio
import json
import re
import time
from pathlib import Path

import msgspec

from bus.connection import Bus
from consumers.alerter.rulebook import built_in
from consumers.alerter.streaks import FAILING_ALERT
from consumers.metrics.settings import store as open_store
from consumers.metrics.tables import GPU_USAGE
from deploy.cli.main import main
from deploy.cli.runbooks import sections
from deploy.local.server import free_port
from tests.behaviour.test_alerts import METHOD_A, monitoring, rules
from tests.conftest import eventually
from tests.stores.alertmanager import alertmanager, receiver


async def cli(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


async def test_status_list_and_test_speak_of_the_rules_in_force(bus: Bus, server, tmp_path: Path, capsys) -> None:
    from tests.behaviour.test_alerts import config

    port = free_port()
    path = rules(tmp_path / "r.yaml", "2s", consecutive_count=2)
    async with (
        receiver() as webhook,
        alertmanager(tmp_path, config(webhook.port), port),
        monitoring(bus, path, [f"http://127.0.0.1:{port}"]) as found,
    ):
        found.gpu.celsius = 95
        await eventually(lambda: bool(found.notices), 20)
        path.write_text("alertRules: [{}]")
        await eventually(lambda: found.alerter.statistics().refused, 20)
        assert await cli("alerts", "status", "--nats", server.url) == 0
        shown = capsys.readouterr().out
        assert "were refused" in shown
        assert "missing required field `name`" in shown
        assert "1 firing" in shown
        assert "FIRING GPUTemperatureHigh since" in shown
        assert await cli("alerts", "status", "--json", "--nats", server.url) == 0
        (state,) = json.loads(capsys.readouterr().out)["states"]
        assert state["streaks"][0]["labels"]["instance"] == "GPU-1"
        assert await cli("alerts", "list", "--json", "--nats", server.url) == 0
        assert [rule["name"] for rule in json.loads(capsys.readouterr().out)] == ["GPUTemperatureHigh"]
        assert await cli("alerts", "test", "GPUTemperatureHigh", "--nats", server.url) == 0
        await eventually(lambda: ("firing", "GPUTemperatureHigh", "gpubus-test") in webhook.alerts, 20)
        await eventually(lambda: found.recorder.statistics().samples > 0)
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 10))
        asked = ("alerts", "backtest", "GPUTemperatureHigh", "--from", begin, "--json", "--nats", server.url)
        capsys.readouterr()
        assert await cli(*asked) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["evaluations"] >= 5
        assert [episode["instance"] for episode in answer["episodes"]] == ["GPU-1"]
        assert await cli("alerts", "test", "Missing", "--nats", server.url) == 1
        assert "there are GPUTemperatureHigh" in capsys.readouterr().err


async def test_backtest_says_when_a_rule_would_have_fired(tmp_path: Path, capsys) -> None:
    url = f"duckdb:{tmp_path}/m.duckdb"
    opened = await open_store(url).open()
    begin = int(time.time()) - 7200
    hot = range(600, 900)
    samples = [
        GPU_USAGE.row((begin + s) * 1000, uuid="GPU-1", node="n", pool="p", temperature=95.0 if s in hot else 50.0)
        for s in range(0, 3600, 5)
    ]
    await opened.write({GPU_USAGE: samples})
    await opened.close()
    rule = next(rule for rule in built_in().rules if rule.name == "GPUTemperatureHigh")
    file = tmp_path / "values.yaml"
    file.write_bytes(msgspec.yaml.encode({"dynamicConfig": {"alertRules": [msgspec.to_builtins(rule)]}}))
    span = ("--from", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin)))
    arguments = ("alerts", "backtest", rule.name, "--file", str(file), "--metrics", url, *span)
    assert await cli(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == 0
    assert found["evaluations"] in (240, 241)
    (episode,) = found["episodes"]
    fired = time.mktime(time.strptime(episode["fired"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone - begin
    assert 600 + 60 <= fired <= 600 + 90  # the third evaluation that sees it
    assert await cli(*arguments) == 0
    assert "would have fired once" in capsys.readouterr().out


async def test_lint_names_every_problem(tmp_path: Path, capsys) -> None:
    good, bad = rules(tmp_path / "good.yaml"), tmp_path / "bad.yaml"
    assert await cli("alerts", "lint", str(good)) == 0
    assert "1 rule, all good" in capsys.readouterr().out
    bad.write_text(good.read_text().replace("1s", "1 s").replace("SELECT", "SELEC"))
    assert await cli("alerts", "lint", str(bad)) == 1
    shown = capsys.readouterr()
    assert "evaluationInterval: '1 s' is no duration" in shown.out
    assert "query does not parse at character 1" in shown.out
    assert "2 problems" in shown.err
    assert "would be refused" in shown.err
    (tmp_path / "a.yaml").write_text(METHOD_A)
    assert await cli("alerts", "lint", str(tmp_path / "a.yaml")) == 1
    assert await cli("alerts", "lint", str(tmp_path / "missing.yaml")) == 2
    assert await cli("alerts", "lint", "/dev/zero") == 2
    assert "it is larger than 4 MiB" in capsys.readouterr().err


async def test_lint_warns_of_what_would_be_taken_and_is_not_meant(tmp_path: Path, capsys) -> None:
    odd = rules(tmp_path / "odd.yaml", summary="{{ .Conditions }}")
    assert await cli("alerts", "lint", str(odd)) == 0
    shown = capsys.readouterr().out
    assert "warning: rule GPUTemperatureHigh: summary: .Conditions would be printed as <no value>" in shown
    assert "1 rule, all would be taken" in shown
    assert await cli("alerts", "lint", str(odd), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1


async def test_a_span_that_no_backtest_can_have_is_bad_input(bus: Bus, server, tmp_path: Path, capsys) -> None:
    del bus  # it has made the streams
    file = rules(tmp_path / "r.yaml")
    asked = ("alerts", "backtest", "GPUTemperatureHigh", "--file", str(file))
    for span, says in (
        (("--from", "2999-01-01T00:00:00Z"), "is in the future"),
        (
            ("--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"),
            "--to 2026-01-01T00:00:00Z is before --from",
        ),
        (("--from", "2020-01-01T00:00:00Z"), "choose a span of at most"),
        (("--from", "yesterday"), "'yesterday' is no time"),
    ):
        for where in (("--nats", server.url), ("--metrics", f"duckdb:{tmp_path}/m.duckdb")):
            assert await cli(*asked, *span, *where) == 2
            assert says in capsys.readouterr().err


def test_every_built_in_alert_has_a_runbook_and_links_to_it_where_that_is_published(capsys) -> None:
    rules = [rule.name for rule in built_in().rules]
    assert [*sections()] == [*rules, FAILING_ALERT]
    for name, text in sections().items():
        assert re.findall(r"^\*\*(.+?)\*\*: \S", text, re.MULTILINE) == ["Means", "Look at", "Do"], name
    assert main(["alerts", "runbook", "GPUVRAMFull"]) == 0
    assert capsys.readouterr().out.startswith("**Means**: more than 97 % of a GPU's VRAM")
    assert main(["alerts", "runbook", "Nothing"]) == 1
    assert "there are WorkerTFlopsThrottled" in capsys.readouterr().err
    linked = built_in("https://wiki.example/gpu-alerts").rules
    assert {rule.runbook_url for rule in linked} == {
        f"https://wiki.example/gpu-alerts#{name.lower()}" for name in rules
    }
