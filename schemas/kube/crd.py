"""Custom resource definitions from our types: structural schemas, with rules in CEL.

The types are the one place where a field, its default and its bounds are written; what the API server checks and what we
decode cannot drift apart. Pure: types in, plain values out.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from schemas.kube.base import API_VERSION, FREE, GROUP, QUANTITY, VERSION, Condition, Contract, Rule
from schemas.kube.kinds import Kind

QUANTITY_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_LONGEST_RULED_LIST: Final = 256
"""Bound of lists whose items have rules: the API server must be able to tell how dear checking them is."""

_BOUNDS: Final = {
    "ge": "minimum", "le": "maximum", "min_length": "minLength", "max_length": "maxLength", "pattern": "pattern",
}  # fmt: skip

Schema = dict[str, Any]


def definition(kind: Kind) -> Schema:
    """Return the ``CustomResourceDefinition`` of one kind."""
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    for part, struct in (("spec", kind.spec), ("status", kind.status)):
        if struct is not None:
            properties[part] = _struct(inspect.type_info(struct))
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _object(_sentence(kind.name), properties, ["spec"] if kind.spec else [])},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.status is not None:
        version["subresources"] = {"status": {}}
        if kind.replicas is not None:
            wanted, there = kind.replicas
            version["subresources"]["scale"] = {"specReplicasPath": wanted, "statusReplicasPath": there}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                # A short name that is another name of the kind already would be refused.
                **({"shortNames": [kind.short]} if kind.short != kind.name.lower() else {}),
            },
            "scope": kind.scope,
            "versions": [version],
        },
    }


def _sentence(name: str) -> str:
    return f"{name} of {API_VERSION}."


def _column(column: Any) -> Schema:
    shown: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.priority:
        shown["priority"] = column.priority
    return shown


def _object(description: str, properties: Schema, required: Iterable[str]) -> Schema:
    schema: Schema = {"description": description, "type": "object", "properties": properties}
    if needed := list(required):
        schema["required"] = needed
    return schema


def _struct(info: inspect.Type) -> Schema:
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{info} is no struct")
    properties: Schema = {}
    for field in info.fields:
        schema = _value(field.type)
        if _stated(field.default):
            schema["default"] = field.default
        properties[field.encode_name] = schema
    required = [field.encode_name for field in info.fields if field.required]
    schema = _object(_first_line(info.cls), properties, required)
    if issubclass(info.cls, Contract) and info.cls.rules:
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in info.cls.rules]
    return schema


def _stated(default: object) -> bool:
    """Whether a default says something; an empty one only means that the field may be left out."""
    return isinstance(default, str | int) and default not in ("", 0)


def _first_line(struct: type) -> str:
    return (struct.__doc__ or "").strip().splitlines()[0].replace("``", "")


def _rule(rule: Rule) -> Schema:
    return {"rule": rule.rule, "message": rule.message}


def _value(info: inspect.Type) -> Schema:
    schema: Schema
    match info:
        case inspect.Metadata():
            schema = _marked(info)
        case inspect.UnionType():
            schema = _union(info)
        case inspect.StructType():
            schema = _struct(info)
        case inspect.VarTupleType():
            schema = _list(info)
        case inspect.DictType():
            schema = {"type": "object", "additionalProperties": _value(info.value_type)}
        case inspect.LiteralType():
            schema = {"type": "string", "enum": list(info.values)}
        case inspect.BoolType():
            schema = {"type": "boolean"}
        case inspect.IntType():
            small = info.le is not None and info.le < 2**31
            schema = {"type": "integer", "format": "int32" if small else "int64", **_bounds(info)}
        case inspect.StrType():
            schema = {"type": "string", **_bounds(info)}
        case _:
            raise TypeError(f"{info} has no place in a structural schema")
    return schema


def _marked(info: inspect.Metadata) -> Schema:
    extra = info.extra or {}
    if extra.get("kind") == QUANTITY:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 64,
            "x-kubernetes-int-or-string": True,
        }
    if extra.get("kind") == FREE:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = _value(info.type)
    if "format" in extra:
        schema["format"] = extra["format"]
    return schema


def _union(info: inspect.UnionType) -> Schema:
    """An optional value; only a quantity is more than one thing."""
    some = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    if len(some) == 1:
        return _value(some[0])
    if {type(one) for one in some} == {inspect.IntType, inspect.StrType}:
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    raise TypeError(f"{info} is more than one thing")


def _list(info: inspect.VarTupleType) -> Schema:
    items = _value(info.item_type)
    schema: Schema = {"type": "array", "items": items}
    if isinstance(info.item_type, inspect.StructType) and info.item_type.cls is Condition:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    if info.max_length is not None:
        schema["maxItems"] = info.max_length
    elif _ruled(items):
        schema["maxItems"] = _LONGEST_RULED_LIST
    return schema


def _ruled(schema: object) -> bool:
    if isinstance(schema, dict):
        return "x-kubernetes-validations" in schema or any(_ruled(part) for part in schema.values())
    return False


def _bounds(info: msgspec.inspect.IntType | msgspec.inspect.StrType) -> Schema:
    found = {word: getattr(info, name, None) for name, word in _BOUNDS.items()}
    return {word: bound for word, bound in found.items() if bound is not None}
