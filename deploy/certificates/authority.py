"""Certificates: an authority's, and those that it signs. Keys are random; time is the caller's.

ECDSA on P-256, as every TLS library takes. An authority lives ten years, what it signs ninety days; each is replaced when a
third of its life is left, so that a renewal that fails for weeks does no harm.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
SKEW: Final = timedelta(hours=1)
"""By so much a certificate begins earlier than now: the clocks of nodes differ."""


class Pair(NamedTuple):
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, now: datetime) -> Pair:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _usage(sign_certificates=True)
    builder = (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, name: str, hosts: Iterable[str], now: datetime) -> Pair:
    """Return a certificate for ``hosts``, signed by ``authority``, for servers that are clients of each other too."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)  # noqa: S101  we made it
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, signer.subject, key.public_key(), now, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    return _pair(builder.sign(signing, hashes.SHA256()), key)


class Life(NamedTuple):
    """When a certificate is good."""

    begins: datetime
    ends: datetime

    def due(self, now: datetime) -> bool:
        """Whether no more than a third of it is left."""
        return self.ends - now <= (self.ends - self.begins) / 3


def life(certificate: bytes) -> Life:
    """Return when the first certificate of a PEM text is good.

    Raises:
        ValueError: It is none.
    """
    found = x509.load_pem_x509_certificate(certificate)
    return Life(found.not_valid_before_utc, found.not_valid_after_utc)


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """Return the names of hosts that a certificate is for.

    Raises:
        ValueError: It is none.
    """
    found = x509.load_pem_x509_certificate(certificate)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether ``authority`` has signed a certificate.

    Raises:
        ValueError: One of them is none.
    """
    found, signer = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(authority)
    try:
        found.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def belongs(pair: Pair) -> bool:
    """Whether a key is that of its certificate.

    Raises:
        ValueError: One of them cannot be read.
    """
    public = serialization.load_pem_private_key(pair.key, None).public_key()
    return public == x509.load_pem_x509_certificate(pair.certificate).public_key()


def split(bundle: bytes) -> list[bytes]:
    """Return the certificates of a PEM text one by one, each once.

    Raises:
        ValueError: It holds something else.
    """
    if not bundle.strip():
        return []
    found = x509.load_pem_x509_certificates(bundle)
    return list(dict.fromkeys(one.public_bytes(serialization.Encoding.PEM) for one in found))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    at = now.astimezone(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - SKEW)
        .not_valid_after(at + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), private)
