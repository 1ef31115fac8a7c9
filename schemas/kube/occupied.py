"""How a node says that pods hold GPUs of ours there, where the native device plugin gives out GPUs too."""

from typing import Final

LABEL: Final = "gpubus.io/occupied"
"""Label with the value ``true``: pods of the native device plugin keep to nodes without it."""

TAINT: Final = {"key": "tensor-fusion.ai/used-by", "value": "tensor-fusion", "effect": "PreferNoSchedule"}
"""Taint for pods that nobody has admitted; whoever may share the node tolerates it."""

TOLERATION: Final = {**TAINT, "operator": "Equal"}
