"""What is asked of an inspector over request/reply, and the frame of its answers."""

from typing import Annotated

import msgspec

from schemas.pod import GpuRequest
from schemas.units import Amount

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$(?!\n)", max_length=253)]
"""A Kubernetes name."""

AnyName = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$(?!\n)", max_length=253)]
"""A Kubernetes name, or nothing."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
After = Annotated[str, msgspec.Meta(max_length=1024)]
"""``next`` of the part before; empty for the first part."""


class _Query(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask"):
    pass


class Simulate(_Query, frozen=True, tag="simulate"):
    """Would this pod fit?

    Attributes:
        clear: Answer with a :class:`schemas.views.Simulation`, not in the words of TensorFusion's ``/api/simulate-schedule``.
        pod: The pod in JSON, as the API server would send it to admission.
        namespace: Where it would be created.
        name: Its name, for the decision; admission may find it without one.
    """

    pod: msgspec.Raw
    namespace: Name
    name: Name
    clear: bool = False


class Dump(_Query, frozen=True, tag="allocation"):
    """Everything that is allocated, in the words of TensorFusion's ``/api/allocation``."""


class Pools(_Query, frozen=True, tag="pools"):
    """All pools, and what there is in them."""


class Nodes(_Query, frozen=True, tag="nodes"):
    """Nodes by name; what is empty narrows nothing."""

    pool: AnyName = ""
    limit: Limit = 100
    after: After = ""


class Allocations(_Query, frozen=True, tag="allocations"):
    """What pods hold, by namespace, name and UID; what is empty narrows nothing."""

    namespace: AnyName = ""
    node: AnyName = ""
    pool: AnyName = ""
    limit: Limit = 100
    after: After = ""


class Emptiable(_Query, frozen=True, tag="emptiable"):
    """Which nodes of a pool could be emptied? The answer is a :class:`schemas.defrag.Defrag`.

    Attributes:
        threshold: Percent of a node that may be used.
        requests: What the pods on such nodes ask for, by UID; others stay.
        fixed: Pods that must stay, by UID, and why.
        skip: Nodes to leave alone.
    """

    pool: Name
    threshold: Annotated[int, msgspec.Meta(ge=0, le=100)]
    requests: dict[str, GpuRequest]
    fixed: dict[str, str] = {}
    skip: tuple[str, ...] = ()


Query = Simulate | Dump | Pools | Nodes | Allocations | Emptiable


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request is not answered.

    Attributes:
        error: One sentence that says what is wrong and what to do.
        field: The part of the request at fault, where there is one.
        value: What stands there.
        fix: What to write instead.
    """

    error: str
    field: str = ""
    value: str = ""
    fix: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: ``body`` is what was asked for under code 200, and else a :class:`Problem`."""

    code: Amount
    body: msgspec.Raw
