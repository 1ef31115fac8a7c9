"""The vocabulary of custom resources: naming, quantities, conditions, and rules that the API server checks."""

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

GROUP: Final = "tensor-fusion.ai"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

_WORDS: Final = {
    "tflops": "TFlops", "vram": "VRAM", "gpu": "GPU", "gpus": "GPUs", "qos": "QoS", "uuid": "UUID", "ttl": "TTL", "id": "ID",
    "mbps": "MBps", "gb": "GB", "ids": "IDs", "fp16": "FP16", "vm": "VM", "url": "URL", "ipv6": "IPv6", "http": "HTTP",
}  # fmt: skip
"""Words that the contract writes in capitals of their own when they do not come first."""


def contract_name(name: str) -> str:
    """Return a field's name in the contract's spelling: ``total_tflops`` is ``totalTFlops``."""
    first, *rest = name.split("_")
    return first + "".join(_WORDS.get(word, word.capitalize()) for word in rest)


class Rule(msgspec.Struct, frozen=True):
    """A condition in CEL that the API server checks, and what it says when it does not hold."""

    rule: str
    message: str


class Contract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=contract_name, gc=False):
    """Base of everything in a custom resource.

    A field without default is required; a default that says something is written into the resource by the API server.
    ``rules`` are checked there too.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()


QUANTITY: Final = "quantity"
FREE: Final = "free"

Quantity = Annotated[int | str, msgspec.Meta(extra={"kind": QUANTITY})]
"""``resource.Quantity``: written as text or as a whole number."""

Free = Annotated[dict[str, Any], msgspec.Meta(extra={"kind": FREE})]
"""Whatever shape its reader wants, such as a pod template."""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Time = Annotated[str, msgspec.Meta(extra={"format": "date-time"})]
DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"
Duration = Annotated[str, msgspec.Meta(pattern=DURATION_PATTERN)]
"""A Go duration."""

Isolation = Literal["shared", "soft", "hard", "partitioned"]
Qos = Literal["low", "medium", "high", "critical"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """``metav1.Condition``."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: Time = ""
    observed_generation: int = 0


class SelectorTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One requirement of a selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class LabelSelector(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """``metav1.LabelSelector``: all of it must hold."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[SelectorTerm, ...] = ()


class NodeSelectorTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """All requirements of a term must hold; a term without any matches nothing."""

    match_expressions: tuple[SelectorTerm, ...] = ()
    match_fields: tuple[SelectorTerm, ...] = ()


class NodeSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """``core/v1.NodeSelector``: one of its terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...]


class Amounts(Contract, frozen=True):
    """Amounts of one GPU, as a status shows them."""

    tflops: Quantity | msgspec.UnsetType = msgspec.UNSET
    compute: Quantity | msgspec.UnsetType = msgspec.UNSET
    vram: Quantity | msgspec.UnsetType = msgspec.UNSET


class Resource(Amounts, frozen=True):
    """Amounts of one GPU. Compute is stated in TFLOPS or in percent of the GPU, never in both."""

    rules: ClassVar = (
        Rule(
            "!(has(self.tflops) && has(self.compute) && quantity(string(self.tflops)).isGreaterThan(quantity('0')) "
            "&& quantity(string(self.compute)).isGreaterThan(quantity('0')))",
            "state compute as tflops or as compute (percent), not both",
        ),
        Rule(
            "!has(self.compute) || (quantity(string(self.compute)).compareTo(quantity('0')) >= 0 "
            "&& quantity(string(self.compute)).compareTo(quantity('100')) <= 0)",
            "compute is a percentage from 0 to 100",
        ),
    )


class Resources(Contract, frozen=True):
    """What is asked for, and what may be used."""

    requests: Resource = Resource()
    limits: Resource = Resource()


class NameRef(Contract, frozen=True):
    """``GroupKindName``."""

    name: str
    group: str = ""
    kind: str = ""
    version: str = ""
