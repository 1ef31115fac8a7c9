"""What each text in a message is, told by the types of the event contract: a name, unless it is listed here.

A field that is new, that no type knows, or that holds what its type does not allow is a name too, so nothing stays by oversight.
What stays by its type alone are numbers, times, and words of a ``Literal``.
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from functools import cache, partial
from typing import Any, Final

import msgspec
from msgspec import inspect

from schemas import cluster, hardware, journal, ledger, node_rules, pod
from schemas.decision import Candidate, Decision, FilterReport
from schemas.event import Event
from schemas.registry import EVENT_TYPES


class Role(Enum):
    """How a text is to be taken. ``LABEL``: a key or value that nodes and requirements are compared by."""

    NAME = auto()
    LABEL = auto()
    COMPOSED = auto()
    SENTENCE = auto()
    CODE = auto()
    VERSION = auto()
    DIGEST = auto()
    LINK = auto()
    HARDWARE = auto()
    HARDWARE_WORD = auto()


Say = Callable[[Role, str], str]
"""What to do with a text."""

Walk = Callable[[Any, Say], Any]
"""Returns a decoded value with all its texts replaced by what is said of them."""

ROLES: Final[dict[tuple[type[msgspec.Struct], str], Role]] = {
    (Event, "id"): Role.COMPOSED,
    (Event, "source"): Role.COMPOSED,
    (Event, "subject"): Role.COMPOSED,
    (Event, "causationid"): Role.COMPOSED,
    (ledger.NodeRecord, "txn"): Role.COMPOSED,
    (ledger.QuotaRecord, "txn"): Role.COMPOSED,
    (ledger.GangRecord, "txn"): Role.COMPOSED,
    (ledger.NodeRecord, "previous"): Role.LINK,
    (journal.Turn, "previous"): Role.LINK,
    (journal.Turn, "engine"): Role.VERSION,
    (journal.Tell, "reason"): Role.CODE,
    (journal.Tell, "message"): Role.SENTENCE,
    (pod.Waiting, "reason"): Role.CODE,
    (FilterReport, "reason"): Role.CODE,
    (Candidate, "parts"): Role.CODE,
    (Decision, "reason"): Role.CODE,
    (Decision, "policy"): Role.CODE,
    (Decision, "policy_hash"): Role.DIGEST,
    (Decision, "engine"): Role.VERSION,
    (Decision, "message"): Role.SENTENCE,
    (Decision, "help"): Role.SENTENCE,
    (hardware.Trouble, "detail"): Role.SENTENCE,
    (hardware.PartitionTemplate, "model"): Role.HARDWARE,
    (cluster.GpuDevice, "model"): Role.HARDWARE,
    (cluster.GpuDevice, "vendor"): Role.HARDWARE,
    (cluster.GpuDevice, "compute_capability"): Role.VERSION,
    (cluster.GpuInventory, "driver"): Role.VERSION,
    (cluster.GpuInventory, "cuda"): Role.VERSION,
    (cluster.PodKind, "models"): Role.HARDWARE,
    (pod.GpuRequest, "models"): Role.HARDWARE,
    (pod.GpuRequest, "vendor"): Role.HARDWARE,
    (pod.GpuRequest, "model_words"): Role.HARDWARE_WORD,
    (pod.GpuRequest, "excluded_model_words"): Role.HARDWARE_WORD,
    (cluster.Node, "labels"): Role.LABEL,
    (node_rules.NodeRules, "selector"): Role.LABEL,
    (node_rules.NodeRequirement, "key"): Role.LABEL,
    (node_rules.NodeRequirement, "values"): Role.LABEL,
}
"""The texts that are no plain names. Models stay: policies' hashes are made of them, and amounts tell them anyway."""

_EVENT: Final = "type"


def unknown(value: Any, say: Say) -> Any:
    """Take every text of a value, keys too, for a name."""
    return _any(value, say, Role.NAME)


def _any(value: Any, say: Say, role: Role) -> Any:
    if isinstance(value, str):
        return say(role, value)
    if isinstance(value, list):
        return [_any(entry, say, role) for entry in value]
    if isinstance(value, dict):
        return {say(role, key): _any(entry, say, role) for key, entry in value.items()}
    return value


def walk_event(event: Any, say: Say) -> Any:
    """Return a decoded message with its texts replaced. One of a type that is not known has names only."""
    kind = event.get(_EVENT) if isinstance(event, dict) else None
    if not isinstance(kind, str) or kind not in EVENT_TYPES:
        return unknown(event, say)
    found = _event(kind)(event, say)
    found[_EVENT] = kind
    return found


@cache
def _event(kind: str) -> Walk:
    return _walk(inspect.type_info(Event[EVENT_TYPES[kind]]), Role.NAME)  # type: ignore[valid-type]


@cache
def _decision() -> Walk:
    return _walk(inspect.type_info(Decision), Role.NAME)


def _walk(kind: inspect.Type, role: Role) -> Walk:
    """Return how to walk values of a type whose texts have a role."""
    found: Walk = partial(_any, role=role)
    match kind:
        case inspect.Metadata():
            found = _walk(kind.type, role)
        case inspect.UnionType():
            found = _union(kind, role)
        case inspect.StructType():
            found = _array(kind) if kind.array_like else _struct(kind)
        case inspect.CollectionType() | inspect.VarTupleType():
            found = _list(kind.item_type, role)
        case inspect.DictType():
            found = _dict(kind.value_type, role)
        case inspect.LiteralType():
            found = _kept(lambda text: text in kind.values, role)
        case inspect.DateTimeType():
            found = _kept(_is_time, role)
        case inspect.RawType():
            found = _decision()
    return found


def _list(item: inspect.Type, role: Role) -> Walk:
    walk = _walk(item, role)
    return lambda value, say: (
        [walk(entry, say) for entry in value] if isinstance(value, list) else _any(value, say, role)
    )


def _dict(item: inspect.Type, role: Role) -> Walk:
    walk = _walk(item, role)
    return lambda value, say: (
        {say(role, key): walk(entry, say) for key, entry in value.items()}
        if isinstance(value, dict)
        else _any(value, say, role)
    )


def _kept(is_ours: Callable[[str], bool], role: Role) -> Walk:
    return lambda value, say: value if isinstance(value, str) and is_ours(value) else _any(value, say, role)


def _is_time(text: str) -> bool:
    try:
        msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return False
    return True


def _union(kind: inspect.UnionType, role: Role) -> Walk:
    structs = [entry for entry in kind.types if isinstance(entry, inspect.StructType)]
    others = [entry for entry in kind.types if not isinstance(entry, inspect.StructType | inspect.NoneType)]
    if len(structs) == 1 and not others:
        return _walk(structs[0], role)
    if structs:
        tagged = {entry.tag: _walk(entry, role) for entry in structs if entry.array_like}

        def walk(value: Any, say: Say) -> Any:
            tag = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None
            return tagged.get(tag, unknown)(value, say)

        return walk
    texts = [entry for entry in others if not isinstance(entry, inspect.IntType | inspect.FloatType)]
    return _walk(texts[0], role) if len(texts) == 1 else partial(_any, role=role)


def _role(kind: inspect.StructType, field: inspect.Field) -> Role:
    owner = getattr(kind.cls, "__origin__", kind.cls)
    return ROLES.get((owner, field.name), Role.NAME)


def _struct(kind: inspect.StructType) -> Walk:
    walks = {field.encode_name: _walk(field.type, _role(kind, field)) for field in kind.fields}

    def walk(value: Any, say: Say) -> Any:
        if not isinstance(value, dict):
            return unknown(value, say)
        return {
            key if key in walks else say(Role.NAME, key): walks.get(key, unknown)(entry, say)
            for key, entry in value.items()
        }

    return walk


def _array(kind: inspect.StructType) -> Walk:
    head = [kind.tag] if kind.tag is not None else []
    walks = [_walk(field.type, _role(kind, field)) for field in kind.fields]

    def walk(value: Any, say: Say) -> Any:
        if not isinstance(value, list) or value[: len(head)] != head:
            return unknown(value, say)
        rest = value[len(head) :]
        padded = [*walks, *[unknown] * (len(rest) - len(walks))]
        return [*head, *(inner(entry, say) for inner, entry in zip(padded, rest, strict=False))]

    return walk
