"""What is to be other than it is. Pure."""

from collections.abc import Callable
from typing import Final

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from schemas.cluster import PlacementMode, Pool

SETTINGS: Final[dict[str, str]] = {
    "tflopsOversellRatio": "tflops_ratio",
    "vramExpandToHostMem": "host_memory",
    "vramExpandToHostDisk": "host_disk",
}
"""What of a pool's capacity can be set, as the custom resource names it, and the field that it is here."""

_POOLS: Final = subjects.subject("state", "pool") + "."

Alter = Callable[[Record], Record]
"""Returns a record of STATE as it would be."""


class Rules(msgspec.Struct, frozen=True):
    """What is to be other than it was. ``placement`` None keeps each pool's; ``settings`` are fields of Oversubscription."""

    name: str
    placement: PlacementMode | None = None
    settings: dict[str, int] = {}

    def apply(self, record: Record) -> Record:
        """Return a record of STATE as it would have been."""
        if record.deleted or not record.subject.startswith(_POOLS):
            return record
        try:
            event = codec.decode_as(Pool, record.payload)
        except UndecodableError:
            return record
        pool = event.data
        over = msgspec.structs.replace(pool.oversubscription, **self.settings)
        pool = msgspec.structs.replace(pool, placement=self.placement or pool.placement, oversubscription=over)
        return msgspec.structs.replace(record, payload=codec.encode(msgspec.structs.replace(event, data=pool)))
