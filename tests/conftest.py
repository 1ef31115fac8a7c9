"""Fixtures shared by all tests: a real nats-server per test, on free ports, in a store that is removed afterwards."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.streams import StreamLimits, ensure_streams
from deploy.local.server import LocalBus, LocalServer

SHM = Path("/dev/shm")


@pytest.fixture
def store() -> Iterator[Path]:
    """A directory on tmpfs where there is one: atomic batches cost an fsync each on a disk."""
    with tempfile.TemporaryDirectory(prefix="gpubus-test-", dir=SHM if SHM.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
async def server(store: Path) -> AsyncIterator[LocalServer]:
    """One running nats-server."""
    local = LocalServer(store)
    await local.start()
    yield local
    await local.stop()


@pytest.fixture
async def bus(server: LocalServer) -> AsyncIterator[Bus]:
    """A connection to ``server`` with all streams declared."""
    async with await Bus.connect(server.url, name="test") as connection:
        await ensure_streams(connection)
        yield connection


@pytest.fixture
async def cluster(store: Path) -> AsyncIterator[LocalBus]:
    """Three servers in a loopback cluster."""
    local = LocalBus(store, replicas=3)
    await local.start()
    yield local
    await local.stop()


@pytest.fixture
async def cluster_bus(cluster: LocalBus) -> AsyncIterator[Bus]:
    """A connection to ``cluster`` with all streams declared on three replicas."""
    async with await Bus.connect(cluster.urls, name="test") as connection:
        await ensure_streams(connection, StreamLimits(replicas=3))
        yield connection


async def eventually(condition, timeout: float = 10.0) -> None:
    """Wait until ``condition()`` holds, letting the loop run."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  what tests wait for has no event
            await asyncio.sleep(0.005)
