"""What is to be said about one object, compared with what STATE says of it already. Pure."""

import msgspec

from producers.watcher.digests import digest
from producers.watcher.plan import About, Known, Outgoing, Stored, fact


class Told(msgspec.Struct, frozen=True, gc=False):
    """What is to be said about one object: commands first, then the content of its subject, empty for nothing."""

    subject: str
    version: int
    commands: list[Outgoing]
    payload: bytes
    stored: Stored | None


def told(about: About, value: msgspec.Struct | None, stored: Stored | None) -> Told | None:
    """Return what is to be said, or None if STATE says so already, or knows better."""
    if stored is not None and stored.version > about.version:
        return None
    if value is None:
        return gone(about, stored, []) if stored is not None else None
    content = digest(value)
    if stored is not None and stored.digest == content:
        return None
    return here(about, value, content, [])


def gone(about: About, stored: Stored | None, commands: list[Outgoing]) -> Told | None:
    """Return what is to be said of an object that is no more, or none of ours; None if nothing is."""
    if stored is None and not commands:
        return None
    return Told(about.subject, about.version, commands, b"", None)


def here(
    about: About, value: msgspec.Struct, content: bytes, commands: list[Outgoing], pod: Known | None = None
) -> Told:
    """Return what is to be said of an object with the digest ``content``; ``pod`` is what commands need to know of one."""
    return Told(about.subject, about.version, commands, fact(about, value), Stored(0, about.version, content, pod))
