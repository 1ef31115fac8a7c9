"""Tamper evidence: each record names the digest of the one that it replaces, so none can be changed later without a trace.

LEDGER is a chain for every node and JOURNAL one for every allocator. The newest record of a subject has no successor yet:
whoever notes the head of all chains can tell that it, too, is as it was.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec


def link(payload: bytes) -> str:
    """Return the digest of a message that its successor names (BLAKE2b, 16 bytes, hexadecimal); nothing of a tombstone."""
    return blake2b(payload, digest_size=16).hexdigest() if payload else ""


class Break(msgspec.Struct, frozen=True):
    """A message that does not follow the one before it on its subject, as far as is known."""

    stream: str
    sequence: int
    subject: str
    detail: str


class Chain:
    """The chains of one stream.

    Args:
        stream: Its name.
        complete: Whether it still holds everything from its first message on.
    """

    def __init__(self, stream: str, *, complete: bool) -> None:
        self._stream = stream
        self._complete = complete
        self._links: dict[str, str] = {}
        self.checked = 0

    def follow(self, seq: int, subject: str, own: str, previous: str) -> Break | None:
        """Take in the next message of a subject, whose link is ``own`` and which says that it follows ``previous``.

        Returns:
            What is wrong with that, if anything is.
        """
        self.checked += 1
        before = self._links.get(subject, "" if self._complete else None)
        self._links[subject] = own
        if not own or before is None or before in (previous, own):  # the same again is no break
            return None
        detail = f"follows {previous or 'nothing'}, and the message before it is {before or 'none'}"
        return Break(self._stream, seq, subject, detail)

    def heads(self) -> Iterable[tuple[str, str]]:
        """Return every subject with the link of its newest message, in order."""
        return sorted(self._links.items())
