"""A pod as people send it, in YAML or JSON, as JSON for admission. Pure, and slow: run it in a thread.

YAML is read as data only. Aliases are refused, as a few hundred bytes of them stand for gigabytes, and so is deep nesting.
"""

from typing import Any, Final

import msgspec
import yaml

from schemas.dialects import RequestError
from schemas.inspection import Name, Simulate
from schemas.kube.manifest import with_quantities

DEEPEST: Final = 64
"""Levels of nesting; those of a pod are below 20."""

JSON_TYPES: Final = ("application/json",)
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")

_FIX: Final = "send one manifest with kind: Pod, such as kubectl apply takes"


class _Loader(yaml.CSafeLoader):
    """YAML with what the API server refuses refused too: a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  PyYAML's
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
        if twice is not None:
            raise RequestError(str(twice)[:253], "", "stands twice in one object", "keep one of them")
        return super().construct_mapping(node, deep=deep)


def read_pod(body: bytes, media_type: str) -> Simulate:
    """Return the question that a body asks.

    Raises:
        RequestError: It is no pod; the message names the field, the value and the fix.
    """
    manifest = _json(body) if media_type in JSON_TYPES else _yaml(body)
    if not isinstance(manifest, dict):
        raise RequestError("body", "", "is no object", _FIX)
    kind = manifest.get("kind", "Pod")
    if kind != "Pod":
        raise RequestError("kind", str(kind), "is no Pod", "send the pod itself, such as a Deployment's pod template")
    meta = manifest.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        raise RequestError("metadata", str(meta), "is no object", _FIX)
    meta = meta or {}
    for part in ("annotations", "labels"):
        _texts(part, meta.get(part))
    generated = meta.get("generateName")
    name = _name("name", meta.get("name") or (f"{generated}simulated" if generated else "pod"))
    namespace = _name("namespace", meta.get("namespace") or "default")
    manifest["metadata"] = {**meta, "name": name, "namespace": namespace}
    try:
        pod = msgspec.Raw(msgspec.json.encode(with_quantities(manifest)))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError("body", "", f"is nothing that JSON can say: {error}", "write keys as text") from None
    return Simulate(pod=pod, namespace=namespace, name=name)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("body", "", f"is no JSON: {error}", _FIX) from None


def _yaml(body: bytes) -> Any:
    depth = 0
    try:
        for event in yaml.parse(body, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise RequestError("body", f"*{event.anchor}", "is a YAML alias", "write out what it stands for")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    raise RequestError("body", "", f"is nested deeper than {DEEPEST} levels", _FIX)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        return yaml.load(body, Loader=_Loader)  # noqa: S506  it is a safe loader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("body", "", f"is no YAML: {error}".replace("\n", " "), _FIX) from None


def _texts(part: str, written: object) -> None:
    if written is not None and not isinstance(written, dict):
        raise RequestError(f"metadata.{part}", str(written), "is no object", _FIX)
    for key, value in (written or {}).items():
        if not isinstance(value, str):
            raise RequestError(f"metadata.{part}.{key}", str(value), "is no text", "write it in quotes")


def _name(field: str, written: object) -> str:
    try:
        return msgspec.convert(written, Name)
    except msgspec.ValidationError:
        fix = "use lower-case letters, digits, '-' and '.', at most 253"
        raise RequestError(f"metadata.{field}", str(written), "is no Kubernetes name", fix) from None
