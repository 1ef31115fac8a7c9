"""Keys and tokens as NATS writes them: Ed25519 in base32 with a checksum, and JSON web tokens signed with them.

Source: nats-io/nkeys (prefix bytes, CRC-16/XMODEM) and nats-io/jwt v2 (``alg`` is ``ed25519-nkey``). Only what an authentication
callout needs is here: one account's key that signs, and the server's key that has signed.
"""

import base64
import binascii
import json
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_SEED: Final = 18 << 3
_ACCOUNT: Final = 0
_SERVER: Final = 13 << 3
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_KEY_BYTES: Final = 32
_PARTS: Final = 3


class TokenError(ValueError):
    """A key or token is not what it should be."""


class Signer:
    """The key of an account, which signs what the callout says."""

    def __init__(self, seed: str) -> None:
        """Read a seed, such as ``SAA…``.

        Raises:
            TokenError: It is no account's seed.
        """
        raw = _decoded(seed)
        if len(raw) != _KEY_BYTES + 2 or raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _ACCOUNT:
            raise TokenError("this is no seed of an account: it begins with SA")
        self._key = Ed25519PrivateKey.from_private_bytes(raw[2:])
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = _encoded(bytes([_ACCOUNT]) + public)
        """The account's public key, ``A…``: what the server's configuration calls the issuer."""

    @classmethod
    def generate(cls) -> str:
        """Return the seed of a new account key."""
        raw = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return _encoded(bytes([_SEED | _ACCOUNT >> 5, (_ACCOUNT & 31) << 3]) + raw)

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a token with these claims, issued by this account."""
        head = _base64(json.dumps(_HEADER, separators=(",", ":")).encode())
        body = _base64(json.dumps({**claims, "iss": self.public}, separators=(",", ":")).encode())
        return f"{head}.{body}.{_base64(self._key.sign(f'{head}.{body}'.encode()))}"


def verified(token: str) -> dict[str, Any]:
    """Return the claims of a token that a server has signed.

    Raises:
        TokenError: It is none, or the signature is not that of who it names.
    """
    parts = token.split(".")
    if len(parts) != _PARTS:
        raise TokenError("this is no token: it has not three parts")
    try:
        claims = json.loads(_unbase64(parts[1]))
        key = _decoded(claims["iss"])
        if len(key) != _KEY_BYTES + 1 or key[0] != _SERVER:
            raise TokenError(f"the token is issued by {claims['iss']!r}, which is no server")
        public = Ed25519PublicKey.from_public_bytes(key[1:])
        public.verify(_unbase64(parts[2]), f"{parts[0]}.{parts[1]}".encode())
    except InvalidSignature:
        raise TokenError("the token's signature is not that of who it names") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenError(f"this is no token: {error}") from None
    if not isinstance(claims, dict):
        raise TokenError("the token claims nothing")
    return claims


def _encoded(raw: bytes) -> str:
    checksum = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + checksum).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, TypeError):
        raise TokenError("this is no key: it is not in base32") from None
    body, checksum = raw[:-2], raw[-2:]
    if binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum:
        raise TokenError("this is no key: its checksum is wrong")
    return body


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
