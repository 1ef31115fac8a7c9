"""The installation guide speaks of values that the chart has, and of commands that there are."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bus.connection import Bus
from bus.errors import BusUnreachableError
from bus.security import Security
from bus.streams import ensure_streams
from consumers.authenticator.nkeys import Signer
from deploy.cli.main import main
from deploy.local.server import find_binary
from tests.chart.render import CHART
from tests.conftest import eventually

GUIDE = (CHART.parent / "docs" / "install.md").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def known(key: str) -> bool:
    """Whether values have a key, written with dots."""
    at: dict[str, Any] = SCHEMA
    for part in key.split("."):
        at = SCHEMA["$defs"][at["$ref"].rpartition("/")[2]] if "$ref" in at else at
        if part not in at.get("properties", {}):
            return at.get("additionalProperties", True) is not False
        at = at["properties"][part]
    return True


KEYS = sorted(
    key
    for key in set(re.findall(r"`([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)+)", GUIDE))
    if key.split(".")[0] in SCHEMA["properties"]
)


def test_values_that_the_guide_names_are_there() -> None:
    assert len(KEYS) > 15
    assert [key for key in KEYS if not known(key)] == []


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"gpubus ((?:schema crds|alerts lint|[a-z]+))", GUIDE)) - {"does", "deploy"})
)
def test_commands_that_the_guide_names_are_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_files_that_the_guide_names_are_there() -> None:
    for name in re.findall(r"deploy/[a-z/-]+(?:\.yaml|chart)", GUIDE):
        assert (CHART.parents[1] / Path(name)).exists(), name


@pytest.mark.parametrize("callout", [False, True])
async def test_the_configuration_of_an_external_bus_lets_in_who_the_chart_says(callout: bool, store: Path) -> None:
    accounts, authorization = (
        block for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL) if re.match("jetstream|authorization", block)
    )
    text = re.sub(".*user: agent,.*\n", "", accounts) + authorization if callout else accounts
    config, ports = store / "nats.conf", store / "ports"
    config.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"\n{text}')
    ports.mkdir()
    passwords = {part: f"{part}-word" for part in ("controller", "scheduler", "webhook", "monitor", "admin", "agent")}
    environment = {part.upper(): word for part, word in passwords.items()}
    environment["CALLOUT_ISSUER"] = Signer(Signer.generate()).public
    process = await asyncio.create_subprocess_exec(
        find_binary(), "-c", str(config), "-sd", str(store / "js"), env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while b"Server is ready" not in (line := await process.stderr.readline()):
            assert line, "the server ended"
        await eventually(lambda: any(file.read_text() for file in ports.glob("*.ports")))
        (url,) = json.loads(next(ports.glob("*.ports")).read_text())["nats"]
        for part, word in passwords.items():
            (store / part).write_text(word)
            login = Security(user=part, password=store / part)
            if callout and part == "agent":
                with pytest.raises(BusUnreachableError):
                    await Bus.connect(url, name=part, security=login, timeout=0.5)
            else:
                async with await Bus.connect(url, name=part, security=login) as bus:
                    if part == "controller":
                        await ensure_streams(bus)
    finally:
        process.kill()
        await process.communicate()
