"""What would be if other rules were in force, decided beside the allocators as pods come. Nothing of it is carried out."""

import msgspec

from schemas.cluster import Amount
from schemas.event import Timestamp


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster stands.

    Attributes:
        pods: Pods that hold something.
        waiting: Pods that fit nowhere at present.
        tflops_percent: Compute given, in percent of what is schedulable.
        vram_percent: VRAM given, likewise.
        stranded_percent: Of the free compute, the part on GPUs that are in use already: the less, the less fragmented.
    """

    pods: Amount
    waiting: Amount
    tflops_percent: float
    vram_percent: float
    stranded_percent: float


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the shadow stands beside the truth.

    Attributes:
        shadow: Its name.
        rules: Which rules it decides by.
        since: Since when it decides; pods that stood before stand where they stood.
        decided: Decisions since.
        placed: Of these, those that found a place.
        same: Pods that stand on the same node in both.
        elsewhere: Pods that stand on different nodes.
        only_shadow: Pods that stand in the shadow only.
        only_real: Pods that stand in truth only.
        examples: Some of the pods that stand elsewhere, as ``namespace/name: node, in the shadow node``.
        real: How the cluster stands in truth.
        state: How it stands in the shadow.
    """

    shadow: str
    rules: str
    since: Timestamp
    at: Timestamp
    decided: Amount
    placed: Amount
    same: Amount
    elsewhere: Amount
    only_shadow: Amount
    only_real: Amount
    examples: tuple[str, ...]
    real: Standing
    state: Standing
