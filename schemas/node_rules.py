"""Which nodes a pod may and would like to run on, in Kubernetes' words: selector, affinity, taints and tolerations.

The structs read the API's JSON as it is (``matchExpressions`` and so on). All of them are frozen and made of tuples, because
requests are dictionary keys and parts of cache keys; :meth:`NodeRules.of` puts a pod's fields together.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import msgspec

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

_LONGEST_LABEL: Final = 63


class Taint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keeps pods off a node that do not tolerate it."""

    key: str
    value: str = ""
    effect: TaintEffect


class Toleration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Taints that a pod tolerates; an empty ``key`` (with ``Exists``) or ``effect`` stands for every one.

    Raises:
        ValueError: ``Exists`` is given a value, or ``Equal`` no key.
    """

    key: str = ""
    operator: Literal["", "Equal", "Exists"] = ""
    value: str = ""
    effect: Literal["", TaintEffect] = ""

    def __post_init__(self) -> None:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"toleration of {self.key!r} has operator Exists and value {self.value!r}: drop one of the two"
            )
        if self.operator != "Exists" and not self.key:
            raise ValueError("toleration with operator Equal names no key: name one, or use operator Exists")


class NodeRequirement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one label, or one field, of a node must be.

    Raises:
        ValueError: The operator does not go with that many values, or with values that are no whole numbers.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count, said = len(self.values), f"node requirement on {self.key!r} with operator {self.operator}"
        if self.operator in ("In", "NotIn") and not count:
            raise ValueError(f"{said} has no values: list one at least")
        if self.operator in ("Exists", "DoesNotExist") and count:
            raise ValueError(f"{said} has values {list(self.values)}: drop them, or use In or NotIn")
        if self.operator in ("Gt", "Lt") and (count != 1 or whole_number(self.values[0]) is None):
            raise ValueError(f"{said} has values {list(self.values)}: give one whole number")


class NodeTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Requirements that a node must meet all of. A term without any matches no node."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class PreferredTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A term and what it counts for."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=100)]
    preference: NodeTerm


class NodeRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod says of nodes.

    Attributes:
        selector: Labels that the node must have (``nodeSelector``), in order of key.
        required: Terms of which the node must match one (``requiredDuringSchedulingIgnoredDuringExecution``); None states
            nothing, no term matches no node.
        preferred: Terms that make a node better (``preferredDuringSchedulingIgnoredDuringExecution``).
        tolerations: Taints that the pod tolerates.
    """

    selector: tuple[tuple[str, str], ...] = ()
    required: tuple[NodeTerm, ...] | None = None
    preferred: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        selector: Mapping[str, str] | None = None,
        required: tuple[NodeTerm, ...] | None = None,
        preferred: tuple[PreferredTerm, ...] = (),
        tolerations: tuple[Toleration, ...] = (),
    ) -> Self | None:
        """Return the rules, or None if the pod states none. Pods that say the same in another order get equal rules."""
        rules = cls(
            selector=tuple(sorted((selector or {}).items())),
            required=required,
            preferred=preferred,
            tolerations=tuple(sorted(set(tolerations), key=lambda t: (t.key, t.operator, t.value, t.effect))),
        )
        return None if rules == cls() else rules


def holds(operator: str, values: tuple[str, ...], value: str | None) -> bool:
    """Return whether a requirement is met by the value of its key, None where there is none.

    Source: Kubernetes, ``NodeSelectorRequirement``: ``Gt`` and ``Lt`` compare whole numbers, and what is none meets neither.
    """
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    number, bound = whole_number(value or ""), whole_number(values[0]) if len(values) == 1 else None
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def whole_number(text: str) -> int | None:
    """Return the number that a label value or requirement states; None if it states none of 64 bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(text) > _LONGEST_LABEL:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
