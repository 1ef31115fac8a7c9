"""Where each pod stands in the ledger, first come first."""

from typing import NamedTuple


class Place(NamedTuple):
    """A node that holds the pod since LEDGER sequence ``seq``."""

    seq: int
    node: str


class Places:
    """Places by pod UID. One each, except while a duplicate is being undone."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Place, ...]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def first(self, uid: str) -> Place | None:
        """Return where the pod stood first: the one place that counts."""
        places = self._places.get(uid)
        return places[0] if places else None

    def add(self, uid: str, node: str, seq: int) -> None:
        """The pod appeared on ``node`` at ``seq``."""
        place = Place(seq, node)
        known = self._places.get(uid)
        if known is None:
            self._places[uid] = (place,)
        elif place not in known:
            self._places[uid] = tuple(sorted((*known, place)))

    def remove(self, uid: str, node: str) -> None:
        """The pod is gone from ``node``."""
        left = tuple(place for place in self._places.get(uid, ()) if place.node != node)
        if left:
            self._places[uid] = left
        else:
            self._places.pop(uid, None)

    def later(self) -> list[tuple[str, Place]]:
        """Return every place that does not count, with its pod's UID."""
        return [(uid, place) for uid, places in self._places.items() for place in places[1:]]
