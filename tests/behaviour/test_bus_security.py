"""The bus behind TLS and passwords, with a real server: who gets in, who does not, and what a rotation takes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from bus.connection import Bus
from bus.errors import BusUnreachableError, SecurityError
from bus.security import Security
from deploy.local.server import find_binary, free_port

SECONDS = 15.0


class Files:
    """Keys and certificates as a Secret would mount them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.password = folder / "password"
        self.password.write_text("first\n")
        self.issue(trustme.CA())

    def issue(self, authority: trustme.CA) -> None:
        """Have everything signed by ``authority``."""
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        for name in ("127.0.0.1", "allocator@example.org"):
            issued, part = authority.issue_cert(name), "server" if name[0].isdigit() else "client"
            issued.private_key_pem.write_to_path(self.folder / f"{part}.key")
            chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
            (self.folder / f"{part}.pem").write_bytes(chain)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GPUBUS_NATS_CA": str(self.folder / "ca.pem"),
            "GPUBUS_NATS_CERTIFICATE": str(self.folder / "client.pem"),
            "GPUBUS_NATS_KEY": str(self.folder / "client.key"),
            "GPUBUS_NATS_USER": "allocator",
            "GPUBUS_NATS_PASSWORD_FILE": str(self.password),
        }


@asynccontextmanager
async def server(files: Files, port: int, password: str) -> AsyncIterator[str]:
    """A server that wants a client certificate and a password."""
    config = files.folder / "nats.conf"
    config.write_text(f"""
        listen: "127.0.0.1:{port}"
        tls {{
            cert_file: "{files.folder / "server.pem"}"
            key_file: "{files.folder / "server.key"}"
            ca_file: "{files.folder / "ca.pem"}"
            verify: true
        }}
        authorization {{ users: [ {{ user: allocator, password: "{password}" }} ] }}
    """)
    process = await asyncio.create_subprocess_exec(find_binary(), "-c", str(config), stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while b"Server is ready" not in (line := await process.stderr.readline()):
            assert line, "the server ended"
        yield f"tls://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.communicate()


async def test_who_shows_certificate_and_password_gets_in(tmp_path: Path) -> None:
    files = Files(tmp_path)
    shown = Security.of(files.environment)
    async with server(files, free_port(), "first") as url, await Bus.connect(url, name="t", security=shown) as bus:
        await bus.client.flush()


@pytest.mark.parametrize("left_out", ["GPUBUS_NATS_CA", "GPUBUS_NATS_CERTIFICATE", "GPUBUS_NATS_USER"])
async def test_who_shows_less_stays_outside(tmp_path: Path, left_out: str) -> None:
    files = Files(tmp_path)
    pairs = {"GPUBUS_NATS_CERTIFICATE": "GPUBUS_NATS_KEY", "GPUBUS_NATS_USER": "GPUBUS_NATS_PASSWORD_FILE"}
    shown = {name: text for name, text in files.environment.items() if name not in (left_out, pairs.get(left_out))}
    async with server(files, free_port(), "first") as url:
        with pytest.raises(BusUnreachableError):
            await Bus.connect(url, name="t", timeout=1.0, security=Security.of(shown))


async def test_everything_may_be_rotated_under_a_running_process(tmp_path: Path) -> None:
    files, port = Files(tmp_path), free_port()
    async with server(files, port, "first") as url:
        bus = await Bus.connect(url, name="t", security=Security.of(files.environment))
        again = asyncio.Event()
        bus.on_reconnect(again.set)
        files.issue(trustme.CA())
        files.password.write_text("second")
    async with bus, server(files, port, "second"), asyncio.timeout(SECONDS):
        await again.wait()
        await bus.client.flush()


@pytest.mark.parametrize(
    ("left_out", "fix"),
    [
        ("GPUBUS_NATS_KEY", "without GPUBUS_NATS_KEY: set both or neither"),
        ("GPUBUS_NATS_CERTIFICATE", "without GPUBUS_NATS_CERTIFICATE: set both or neither"),
        ("GPUBUS_NATS_USER", "GPUBUS_NATS_USER and GPUBUS_NATS_PASSWORD_FILE go together"),
        ("GPUBUS_NATS_PASSWORD_FILE", "GPUBUS_NATS_USER and GPUBUS_NATS_PASSWORD_FILE go together"),
    ],
)
def test_half_of_a_pair_is_refused(tmp_path: Path, left_out: str, fix: str) -> None:
    given = {name: text for name, text in Files(tmp_path).environment.items() if name != left_out}
    with pytest.raises(SecurityError, match=fix):
        Security.of(given)


@pytest.mark.parametrize("broken", ["ca.pem", "client.pem", "client.key", "password"])
@pytest.mark.parametrize("how", ["absent", "junk"])
async def test_files_that_cannot_be_used_are_named(tmp_path: Path, broken: str, how: str) -> None:
    files = Files(tmp_path)
    if how == "absent":
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_bytes(b"\xff junk")
    with pytest.raises(SecurityError, match=broken):
        await Bus.connect("tls://127.0.0.1:1", name="t", timeout=1.0, security=Security.of(files.environment))
