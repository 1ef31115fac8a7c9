"""Rendering the chart with Helm's own engine, in process."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "chart"
GUIDES = sorted((HERE / "guides").glob("*.yaml"))
NOTES = "NOTES.txt"
RELEASE = NAMESPACE = "tensor-fusion-sys"

Objects = dict[tuple[str, str], dict[str, Any]]


def values_of(*files: Path | dict[str, Any]) -> dict[str, Any]:
    """Lay values over each other as ``helm -f`` does: maps are merged, everything else is replaced."""
    merged: dict[str, Any] = {}
    for file in files:
        _lay(merged, yaml.safe_load(file.read_text()) if isinstance(file, Path) else copy.deepcopy(file))
    return merged


def _lay(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay(below[key], value)
        else:
            below[key] = value


def production(*files: Path | dict[str, Any]) -> dict[str, Any]:
    return values_of(CHART / "values-production.yaml", *files)


def rendered(values: dict[str, Any], name: str = RELEASE, namespace: str = NAMESPACE) -> tuple[Objects, str]:
    """Return the objects by kind and name, and the notes."""
    texts = _texts(json.dumps(values), name, namespace)
    objects: Objects = {}
    for file, text in texts.items():
        if file.endswith(NOTES) or Path(file).name.startswith("_"):
            continue
        for document in yaml.load_all(text, yaml.CSafeLoader):
            if document:
                key = (document["kind"], document["metadata"]["name"])
                assert key not in objects, f"{key} is rendered twice"
                objects[key] = document
    return objects, next(text for file, text in texts.items() if file.endswith(NOTES))


@functools.lru_cache
def _texts(values: str, name: str, namespace: str) -> dict[str, str]:
    helm = pytest.importorskip("helm_python")
    with helm.Chart.load(CHART) as chart:
        return chart.render(values=json.loads(values), name=name, namespace=namespace)


def pods(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the pod template of everything that has one."""
    found = {}
    for key, document in objects.items():
        spec = document.get("spec") or {}
        if document["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec and "spec" in spec["template"]:
            found[key] = spec["template"]
    return found
