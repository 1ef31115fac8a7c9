"""Where each pod stands in the ledger, first come first, and where those that left stood last."""

from typing import Final, NamedTuple

REMEMBERED: Final = 65_536
"""Pods that left and are remembered: a release whose answer was lost comes again within a minute or so."""


class Place(NamedTuple):
    """A node that holds the pod since LEDGER sequence ``seq``."""

    seq: int
    node: str


class Places:
    """Places by pod UID. One each, except while a duplicate is being undone."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Place, ...]] = {}
        self._left: dict[str, Place] = {}

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

    def left(self, uid: str) -> Place | None:
        """Return the node that a pod stood on last and the sequence at which it left, if that is not too long ago."""
        return self._left.get(uid)

    def remove(self, uid: str, node: str, seq: int) -> None:
        """The pod is gone from ``node`` since ``seq``."""
        self._left.pop(uid, None)
        self._left[uid] = Place(seq, node)
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]
        left = tuple(place for place in self._places.get(uid, ()) if place.node != node)
        if left:
            self._places[uid] = left
        else:
            self._places.pop(uid, None)

    def later(self) -> list[tuple[str, Place]]:
        """Return every place that does not count, with its pod's UID."""
        return [(uid, place) for uid, places in self._places.items() for place in places[1:]]
