"""What the Secrets of certificates and passwords have to become: a function of what they are, and of the time.

A new authority is believed a day before it signs, and an old one until it ends: whoever reads its bundle meanwhile believes both
sides of the change, so that no connection is refused while an authority is replaced.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from consumers.authenticator.nkeys import Signer
from deploy.certificates.authority import (
    Pair,
    belongs,
    hosts_of,
    issue,
    life,
    make_authority,
    signed_by,
    split,
)

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
BUNDLE: Final = "ca.crt"
SEED: Final = "callout-seed"
ISSUER: Final = "callout-issuer"
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"

BELIEVED_FIRST: Final = timedelta(days=1)
"""How long a new authority is in bundles before it signs: kubelets bring a changed Secret to pods within minutes."""

PASSWORD_BYTES: Final = 24

Data = dict[str, bytes]
"""A Secret's data."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be there.

    Attributes:
        authority: Name of the Secret of the authority; ``<name>`` is its common name too.
        leaves: Names of hosts by the Secret of their certificate.
        passwords: Users that need a password, by Secret.
        callout: Secret that needs the account key with which authenticators sign; empty for none.
    """

    authority: str
    leaves: Mapping[str, Sequence[str]] = {}
    passwords: Mapping[str, Sequence[str]] = {}
    callout: str = ""


def renewed(there: Mapping[str, Data], wanted: Wanted, now: datetime) -> dict[str, Data]:
    """Return the data of every Secret that has to change, whole.

    Args:
        there: What there is, by name of the Secret; those that are missing are left out.
        wanted: What is to be there.
        now: The time.
    """
    changed: dict[str, Data] = {}
    if wanted.leaves:
        authority = _authority(there.get(wanted.authority, {}), wanted.authority, now)
        changed[wanted.authority] = authority
        for name, hosts in wanted.leaves.items():
            changed[name] = _leaf(there.get(name, {}), authority, name, hosts, now)
    for name, users in wanted.passwords.items():
        old = there.get(name, {})
        missing = [user for user in users if not old.get(user)]
        changed[name] = old | {user: _password() for user in missing}
    if wanted.callout:
        old = changed.get(wanted.callout, there.get(wanted.callout, {}))
        changed[wanted.callout] = old | _callout(old)
    return {name: data for name, data in changed.items() if data != there.get(name)}


def _password() -> bytes:
    """Return a password that NATS takes from its environment as text: one that begins with a digit is a number there."""
    return f"pw{secrets.token_urlsafe(PASSWORD_BYTES)}".encode()


def _callout(old: Data) -> Data:
    """Return seed and public key; the public one follows from the seed, and both are new if that cannot be read."""
    try:
        seed = old[SEED].decode("ascii")
        return {SEED: old[SEED], ISSUER: Signer(seed).public.encode()}
    except (KeyError, ValueError):
        seed = Signer.generate()
        return {SEED: seed.encode(), ISSUER: Signer(seed).public.encode()}


def _authority(old: Data, name: str, now: datetime) -> Data:
    if not _usable(old, CERTIFICATE, KEY) or life(old[CERTIFICATE]).ends <= now:
        fresh = make_authority(name, now)
        return _with_bundle({CERTIFICATE: fresh.certificate, KEY: fresh.key}, _kept(old, now), now)
    data = dict(old)
    if NEXT_CERTIFICATE in data and not _usable(data, NEXT_CERTIFICATE, NEXT_KEY):
        data = {key: value for key, value in data.items() if key not in (NEXT_CERTIFICATE, NEXT_KEY)}
    if NEXT_CERTIFICATE in data:
        if now - life(data[NEXT_CERTIFICATE]).begins >= BELIEVED_FIRST:
            signer = {CERTIFICATE: data[NEXT_CERTIFICATE], KEY: data[NEXT_KEY]}
            return _with_bundle(signer, [data[CERTIFICATE], *_kept(data, now)], now)
    elif life(data[CERTIFICATE]).due(now):
        coming = make_authority(name, now)
        data |= {NEXT_CERTIFICATE: coming.certificate, NEXT_KEY: coming.key}
    signer = {key: data[key] for key in (CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY) if key in data}
    return _with_bundle(signer, _kept(data, now), now)


def _kept(old: Data, now: datetime) -> list[bytes]:
    """Return the authorities that a bundle names; one that cannot be read names none."""
    try:
        return [one for one in split(old.get(BUNDLE, b"")) if life(one).ends > now]
    except ValueError:
        return []


def _with_bundle(signer: Data, kept: Sequence[bytes], now: datetime) -> Data:
    ours = [signer[key] for key in (CERTIFICATE, NEXT_CERTIFICATE) if key in signer]
    believed = dict.fromkeys([*ours, *(one for one in kept if life(one).ends > now)])
    return signer | {BUNDLE: b"".join(believed)}


def _leaf(old: Data, authority: Data, name: str, hosts: Sequence[str], now: datetime) -> Data:
    good = (
        _usable(old, CERTIFICATE, KEY)
        and not life(old[CERTIFICATE]).due(now)
        and sorted(hosts_of(old[CERTIFICATE])) == sorted(hosts)
        and signed_by(old[CERTIFICATE], authority[CERTIFICATE])
    )
    pair = Pair(old[CERTIFICATE], old[KEY]) if good else None
    if pair is None:
        pair = issue(Pair(authority[CERTIFICATE], authority[KEY]), name, hosts, now)
    return {CERTIFICATE: pair.certificate, KEY: pair.key, BUNDLE: authority[BUNDLE]}


def _usable(data: Data, certificate: str, key: str) -> bool:
    if not data.get(certificate) or not data.get(key):
        return False
    try:
        return belongs(Pair(data[certificate], data[key]))
    except (ValueError, TypeError):
        return False
