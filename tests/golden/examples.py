"""An event of every type with every field filled, as this version writes it: ``python -m tests.golden.examples`` adds new ones.

Lines are never changed or removed: what an earlier version has written decodes for ever.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus import codec
from schemas.cluster import GpuInventory
from schemas.event import Event
from schemas.pod import GpuRequest
from schemas.registry import EVENT_TYPES

FILE: Final = Path(__file__).parent / "events.jsonl"
AT: Final = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
DEPTH: Final = 12
PREFERRED: Final = ("In", "Equal")
"""Operators that go with a value."""
CONTRADICT: Final[dict[type, tuple[str, ...]]] = {GpuRequest: ("compute_milli", "vram_milli")}
"""Fields that say what others say, and may not stand beside them."""


def example(kind: type) -> Any:
    """Return a value of a type, as plain JSON values, with every field and every member of a union that goes there."""
    return _value(inspect.type_info(kind), 0)


_SCALARS: Final[dict[type, Any]] = {
    inspect.StrType: "x",
    inspect.BoolType: True,
    inspect.DateTimeType: AT.isoformat().replace("+00:00", "Z"),
    inspect.BytesType: "eA==",
    inspect.RawType: {"x": 1},
    inspect.AnyType: {"x": 1},
}


def _value(kind: Any, depth: int) -> Any:
    if depth > DEPTH:
        raise ValueError(f"{kind} is nested without end")
    match kind:
        case inspect.StructType():
            return _struct(kind, depth)
        case inspect.UnionType(types=types):
            return _value(next(one for one in types if not isinstance(one, inspect.NoneType)), depth)
        case inspect.DictType(key_type=key, value_type=item):
            return {str(_value(key, depth + 1)): _value(item, depth + 1)}
        case inspect.LiteralType(values=values):
            return next((value for value in values if value in PREFERRED), values[0])
        case inspect.IntType() | inspect.FloatType():
            return _number(kind)
    scalar = _SCALARS.get(type(kind))
    return [_value(item, depth + 1) for item in _items(kind)] if scalar is None else scalar


def _items(kind: Any) -> tuple[Any, ...]:
    """Return the types of the elements of a list."""
    if isinstance(kind, inspect.TupleType):
        return kind.item_types
    item = kind.item_type
    return item.types if isinstance(item, inspect.UnionType) else (item,)


def _struct(kind: inspect.StructType, depth: int) -> Any:
    fields = {field.encode_name: _value(field.type, depth + 1) for field in kind.fields}
    for name in CONTRADICT.get(kind.cls, ()):
        del fields[name]
    if kind.cls is GpuInventory:  # links are between two of its GPUs
        fields["gpus"].append({**fields["gpus"][0], "uuid": "y"})
        fields["links"][0][0] = 0
    if kind.array_like:
        return [*([kind.tag] if kind.tag is not None else []), *fields.values()]
    return ({kind.tag_field: kind.tag} if kind.tag_field else {}) | fields


def _number(kind: inspect.IntType | inspect.FloatType) -> float:
    least = kind.ge if kind.ge is not None else kind.gt if kind.gt is not None else 0
    most = kind.le if kind.le is not None else kind.lt if kind.lt is not None else least + 2
    return min(least + 1, most)


def lines() -> list[dict[str, Any]]:
    """Return the recorded events."""
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def written(name: str) -> dict[str, Any]:
    """Return the event of a type that this version writes."""
    data = msgspec.json.decode(json.dumps(example(EVENT_TYPES[name])), type=EVENT_TYPES[name])
    event = Event(id="x", source="/x", type=name, subject="x", time=AT, data=data, causationid="y", traceparent="z")
    return json.loads(codec.encode(event))


def main() -> None:
    """Record the types that have changed since they were recorded."""
    found = lines()
    new = [event for name in EVENT_TYPES if (event := written(name)) not in found]
    everything = sorted((*found, *new), key=lambda event: event["type"])
    FILE.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in everything))
    print(f"{len(new)} of {len(EVENT_TYPES)} types recorded")


if __name__ == "__main__":
    main()
