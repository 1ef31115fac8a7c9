"""Names on the bus: how Kubernetes names become subject tokens and back.

A NATS subject is a list of tokens joined by dots, so a node name such as ``gpu-1.rack-2.example`` must not be one.
:func:`token` keeps ``A-Z a-z 0-9 _ -`` and writes every other UTF-8 byte as ``=XX`` (as quoted-printable does); the empty
name becomes a lone ``=``. The result never contains a dot, a wildcard or white space, and :func:`untoken` reverses it
exactly.
"""

import re
from functools import lru_cache
from typing import Final

PREFIX: Final = "gpubus"

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ENCODED: Final = re.compile(r"=|(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")
_HEX_PAIR: Final = re.compile(rb"=([0-9A-F]{2})")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """Encode one name as one subject token."""
    if name.isascii() and name.replace("-", "").isalnum():
        return name
    if not name:
        return "="
    return "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in name.encode())


@lru_cache(maxsize=65536)
def untoken(encoded: str) -> str:
    """Decode one subject token.

    Raises:
        ValueError: The token was not made by :func:`token`.
    """
    if encoded.isascii() and encoded.replace("-", "").isalnum():
        return encoded
    if encoded == "=":
        return ""
    if not _ENCODED.fullmatch(encoded):
        raise ValueError(f"subject token {encoded!r} is not an encoded name")
    try:
        name = _HEX_PAIR.sub(lambda match: bytes.fromhex(match[1].decode()), encoded.encode()).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"subject token {encoded!r} does not decode to UTF-8: {error.reason}") from None
    if token(name) != encoded:
        raise ValueError(f"subject token {encoded!r} is not the encoding of {name!r}")
    return name


def subject(*names: str) -> str:
    """Join literal words and encoded names under the project's prefix; names are encoded here."""
    return ".".join((PREFIX, *map(token, names)))


def names(subject_text: str) -> tuple[str, ...]:
    """Split a subject of ours into its decoded names, the prefix left out.

    Raises:
        ValueError: The subject is not one of ours.
    """
    prefix, *tokens = subject_text.split(".")
    if prefix != PREFIX or not tokens:
        raise ValueError(f"subject {subject_text!r} does not start with {PREFIX!r}")
    return tuple(map(untoken, tokens))


def state(kind: str, *name: str) -> str:
    """Subject of the newest projection of an object: ``gpubus.state.<kind>.<name…>``."""
    return subject("state", kind, *name)


def ledger_node(node: str) -> str:
    """Subject of a node's ledger record."""
    return subject("ledger", "node", node)


def ledger_quota(namespace: str) -> str:
    """Subject of what the pods of a namespace with a quota hold together."""
    return subject("ledger", "quota", namespace)


def ledger_rollout(pool: str, component: str) -> str:
    """Subject of the record of a rollout."""
    return subject("ledger", "rollout", pool, component)


def ledger_gang(key: str) -> str:
    """Subject of who stands of a gang."""
    return subject("ledger", "gang", key)


def decision(namespace: str, name: str) -> str:
    """Subject of the decisions about one pod."""
    return subject("decision", namespace, name)


def journal(allocator: str) -> str:
    """Subject of what an allocator took in, in its order."""
    return subject("journal", allocator)


def usage_gpu(node: str) -> str:
    """Subject of a node's GPU samples."""
    return subject("usage", "gpu", node)


def notice(namespace: str, name: str, node: str) -> str:
    """Subject of what happens to the GPUs that one pod holds, by the node whose agent says so."""
    return subject("notice", namespace, name, node)


def drift(node: str) -> str:
    """Subject of the differences between a node and its ledger record."""
    return subject("drift", node)


def capacity(pool: str) -> str:
    """Subject of what a pool lacks and has to spare."""
    return subject("capacity", pool)


def alert(rule: str) -> str:
    """Subject of what an alert rule has to tell."""
    return subject("alert", rule)


def work(command: str, *name: str) -> str:
    """Subject of a command: ``gpubus.work.<command>.<name…>``."""
    return subject("work", command, *name)


def bound(uid: str) -> str:
    """``gpubus.rpc.extender.bound.<uid>``: what became of a pod that a kube-scheduler had us bind; ``*`` for all pods."""
    return f"{rpc('extender.bound')}.{'*' if uid == '*' else token(uid)}"


def rpc(service: str) -> str:
    """Subject of a request/reply service; dots in the service name separate tokens."""
    return subject("rpc", *service.split("."))
