"""A pod as people send it, in YAML or JSON, as JSON for admission. Pure, and slow: run it in a thread."""

from typing import Any, Final

import msgspec

from schemas.dialects import RequestError
from schemas.inspection import Name, Simulate
from schemas.kube.manifest import with_quantities
from schemas.plain import decode_yaml

JSON_TYPES: Final = ("application/json",)
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")

_FIX: Final = "send one manifest with kind: Pod, such as kubectl apply takes"


def read_pod(body: bytes, media_type: str) -> Simulate:
    """Return the question that a body asks.

    Raises:
        RequestError: It is no pod; the message names the field, the value and the fix.
    """
    manifest = _json(body) if media_type in JSON_TYPES else decode_yaml(body, field="body", fix=_FIX)
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
