"""The image is made from files with known digests, as nobody in particular, and has what every role needs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy" / "image"
EXTRAS = ("agent", "gateway", "issuer")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file: str) -> dict[str, int]:
    """Return how many digests each locked package has."""
    found: dict[str, int] = {}
    name = ""
    for line in (IMAGE / file).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?==\S+", line):
            name = plain(match[1])
            found[name] = 0
        found[name] += line.strip().startswith("--hash=sha256:")
    return found


def test_all_that_is_needed_is_locked_with_digests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for extra in EXTRAS:
        wanted += project["project"]["optional-dependencies"][extra]
    names = {plain(re.match(r"[A-Za-z0-9._-]+", one)[0]) for one in wanted}
    there = locked("requirements.txt")
    assert names <= set(there), "run `make lock`"
    assert min(there.values()) >= 1
    build = {plain(re.match(r"[A-Za-z0-9._-]+", one)[0]) for one in project["build-system"]["requires"]}
    assert build <= set(locked("build.txt"))


def test_it_runs_as_nobody_from_a_pinned_base() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    assert text.count("FROM ${BASE}") == 2
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert ":latest" not in text
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert text.count("--require-hashes") == 2
    assert 'ENTRYPOINT ["gpubus"]' in text


def test_the_chart_runs_the_version_of_the_code() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (ROOT / "deploy" / "chart" / "Chart.yaml").read_text()
    assert f"appVersion: {version}" in chart
    assert f"gpubus/gpubus:{version}" in (ROOT / "Makefile").read_text()
