"""Bounded numbers that every part of the schema uses."""

from typing import Annotated

import msgspec

Amount = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[int, msgspec.Meta(ge=0, le=1000)]
"""A part of one GPU in thousandths."""
