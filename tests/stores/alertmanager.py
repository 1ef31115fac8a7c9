"""A real Alertmanager, and a webhook receiver that keeps what it sends."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpubus" / "assets"


def find() -> str:
    """Return the binary, or skip."""
    if named := os.environ.get("GPUBUS_ALERTMANAGER_BINARY"):
        return named
    for name in ("prometheus-alertmanager", "alertmanager"):
        if found := shutil.which(name):
            return found
    assets = Path(os.environ.get("GPUBUS_TEST_ASSETS") or CACHE)
    built = sorted(assets.glob("alertmanager-*/alertmanager"))
    if not built:
        pytest.skip("no Alertmanager: run `make test-assets`, or install prometheus-alertmanager")
    return str(built[-1])


class Receiver:
    """A webhook: ``alerts`` has (status, alert name, instance) in the order of arrival."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, str, str]] = []
        self.bodies: list[dict] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.bodies.append(body)
                for alert in body["alerts"]:
                    labels = alert["labels"]
                    self.alerts.append((alert["status"], labels["alertname"], labels["instance"]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    webhook = Receiver()
    server = await asyncio.start_server(webhook.serve, "127.0.0.1", 0)
    webhook.port = server.sockets[0].getsockname()[1]
    yield webhook
    server.close()
    server.close_clients() if hasattr(server, "close_clients") else None


@asynccontextmanager
async def alertmanager(data: Path, config: str, port: int) -> AsyncIterator[Callable[[], None]]:
    """Run one until the end of the block; its configuration is YAML. Yields what kills it."""
    binary = find()
    (data / "am.yml").write_text(config)
    command = [
        binary, f"--config.file={data / 'am.yml'}", f"--storage.path={data / 'am'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(30):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    (await client.get(f"http://127.0.0.1:{port}/-/ready")).raise_for_status()
                    break
                await asyncio.sleep(0.05)
        yield process.kill
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
