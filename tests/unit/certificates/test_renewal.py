"""Certificates are made, kept, and renewed in time; an authority is replaced with nobody refused on the way."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.certificates.authority import AUTHORITY_LIFE, LEAF_LIFE, Pair, hosts_of, issue, life, make_authority, split
from deploy.certificates.renewal import BUNDLE, CERTIFICATE, KEY, NEXT_CERTIFICATE, Data, Wanted, renewed

NOW = datetime.now(UTC)
HOSTS = ("bus.sys.svc", "*.bus-headless.sys.svc", "localhost")
WANTED = Wanted(authority="r-ca", leaves={"r-nats-tls": HOSTS}, passwords={"r-nats-auth": ["controller", "admin"]})


def after(there: dict[str, Data], days: float, wanted: Wanted = WANTED) -> dict[str, Data]:
    return there | renewed(there, wanted, NOW + timedelta(days=days))


def handshake(server: Data, bundle: bytes, folder: Path, host: str = "localhost") -> None:
    """Have TLS itself say whether a server's certificate is believed; the server wants one of us too."""
    (folder / "crt").write_bytes(server[CERTIFICATE])
    (folder / "key").write_bytes(server[KEY])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "crt", folder / "key")
    serving.load_verify_locations(cadata=server[BUNDLE].decode())
    serving.verify_mode = ssl.CERT_REQUIRED
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.load_verify_locations(cadata=bundle.decode())
    asking.load_cert_chain(folder / "crt", folder / "key")
    near, far = socket.socketpair()
    with near, far:

        def serve() -> None:
            with serving.wrap_socket(far, server_side=True) as connection:
                connection.send(connection.recv(2))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with asking.wrap_socket(near, server_hostname=host) as connection:
                connection.send(b"hi")
                assert connection.recv(2) == b"hi"
        finally:
            thread.join()


def test_what_is_missing_is_made_and_tls_believes_it(tmp_path: Path) -> None:
    made = after({}, 0)
    assert set(made) == {"r-ca", "r-nats-tls", "r-nats-auth"}
    handshake(made["r-nats-tls"], made["r-nats-tls"][BUNDLE], tmp_path)
    handshake(made["r-nats-tls"], made["r-nats-tls"][BUNDLE], tmp_path, "r-nats-0.bus-headless.sys.svc")
    assert hosts_of(made["r-nats-tls"][CERTIFICATE]) == HOSTS
    passwords = made["r-nats-auth"]
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 32 for password in passwords.values())


def test_what_is_good_stays_as_it_is() -> None:
    made = after({}, 0)
    for days in (0.01, 1, 30, 59):
        assert renewed(made, WANTED, NOW + timedelta(days=days)) == {}


def test_a_certificate_is_renewed_when_a_third_is_left_and_passwords_never_are() -> None:
    made = after({}, 0)
    later = renewed(made, WANTED, NOW + timedelta(days=61))
    assert set(later) == {"r-nats-tls"}
    assert later["r-nats-tls"][BUNDLE] == made["r-nats-tls"][BUNDLE]
    assert life(later["r-nats-tls"][CERTIFICATE]).ends > life(made["r-nats-tls"][CERTIFICATE]).ends


def test_another_host_or_user_is_added() -> None:
    made = after({}, 0)
    wanted = Wanted(
        authority="r-ca",
        leaves={"r-nats-tls": (*HOSTS, "more.svc")},
        passwords={"r-nats-auth": ["controller", "admin", "binder"]},
    )
    changed = renewed(made, wanted, NOW)
    assert set(changed) == {"r-nats-tls", "r-nats-auth"}
    assert changed["r-nats-auth"].items() >= made["r-nats-auth"].items()


@pytest.mark.parametrize("broken", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("key", [CERTIFICATE, KEY, BUNDLE])
@pytest.mark.parametrize("secret", ["r-ca", "r-nats-tls"])
def test_what_somebody_has_broken_is_made_good(tmp_path: Path, secret: str, key: str, broken: bytes) -> None:
    made = after({}, 0)
    made[secret] = made[secret] | {key: broken}
    again = after(made, 0)
    handshake(again["r-nats-tls"], again["r-nats-tls"][BUNDLE], tmp_path)
    assert renewed(again, WANTED, NOW + timedelta(days=1)) == {}


def test_a_key_of_another_certificate_is_noticed(tmp_path: Path) -> None:
    made = after({}, 0)
    made["r-nats-tls"] = made["r-nats-tls"] | {KEY: make_authority("x", NOW).key}
    again = after(made, 0)
    handshake(again["r-nats-tls"], again["r-nats-tls"][BUNDLE], tmp_path)


def test_an_authority_is_replaced_with_nobody_refused() -> None:
    """Every bundle that anybody may still have must believe every certificate that anybody may still show."""
    there = after({}, -0.66 * AUTHORITY_LIFE.days)
    first = split(there["r-ca"][BUNDLE])
    steps = [there]
    for day in (0, 25, 25.5, 26, 27, 28, 40, 80):  # the last third of the first authority begins on the way
        there = after(there, day)
        steps.append(there)
    authorities = {step["r-ca"][CERTIFICATE] for step in steps}
    assert len(authorities) == 2
    assert any(NEXT_CERTIFICATE in step["r-ca"] for step in steps)
    assert set(first) <= set(split(there["r-ca"][BUNDLE]))
    for shown, reads in pairwise(steps):
        for server, client in ((shown, reads), (reads, shown)):
            signers = split(client["r-nats-tls"][BUNDLE])
            assert server["r-ca"][CERTIFICATE] in signers


def test_an_authority_that_has_ended_is_forgotten() -> None:
    there = after({}, -AUTHORITY_LIFE.days - 5)
    again = after(there, 0)
    assert len(split(again["r-ca"][BUNDLE])) == 1
    assert life(again["r-nats-tls"][CERTIFICATE]).ends > NOW + LEAF_LIFE / 2


def test_a_certificate_of_another_authority_is_not_kept() -> None:
    made = after({}, 0)
    stranger = issue(make_authority("r-ca", NOW), "r-nats-tls", HOSTS, NOW)
    made["r-nats-tls"] = made["r-nats-tls"] | {CERTIFICATE: stranger.certificate, KEY: stranger.key}
    assert after(made, 0)["r-nats-tls"][CERTIFICATE] != Pair(*stranger).certificate
