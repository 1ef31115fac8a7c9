"""The DuckDB file and the threads that work on it: opened anew after an error that spoils it, or when somebody takes it away.

DuckDB goes on writing to a file that was deleted, and all of it is gone when the process ends. So the file at the path is
compared with the open one before every use, which costs a few microseconds.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from consumers.metrics.store import StoreError, StoreUnavailableError

log = logging.getLogger("gpubus.metrics")

T = TypeVar("T")

ONE_PROCESS: Final = (
    "A DuckDB file belongs to one process: end that one, let `gpubus up` play all roles, "
    "or use GreptimeDB, which any number can share"
)
NOT_OURS: Final = "Name a file that can be written, in a directory that is there, and move away what is no DuckDB file"
_LOCKED: Final = "Could not set lock"


class DuckFile:
    """One file, or memory.

    Args:
        path: The file.
        memory_bytes: Most memory that DuckDB may take.
        clock: Seconds since the epoch.
        prepare: Makes what is missing in a file just opened; returns whether all was.
        count: Counts the rows that are lost with a file.

    Attributes:
        since: When the file was made, or found in the place of another; 0 for one that was there.
        lost_rows: Rows that were in files that somebody took away.
        trouble: Why it cannot be opened again; empty while it can.
    """

    def __init__(
        self,
        path: Path,
        *,
        memory_bytes: int,
        clock: Callable[[], float],
        prepare: Callable[[duckdb.DuckDBPyConnection], bool],
        count: Callable[[duckdb.DuckDBPyConnection], int],
    ) -> None:
        self._path = path
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._prepare = prepare
        self._count = count
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="duckdb-write")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="duckdb-read")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._opened: tuple[int, int] | None = None
        self._closed = self._spoilt = False
        self._mending = asyncio.Lock()
        self._working: set[asyncio.Future[Any]] = set()
        self.since = 0.0
        self.lost_rows = 0
        self.trouble = ""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, for the work that is run.

        Raises:
            StoreError: The file is not open.
        """
        if self._connection is None:
            raise StoreError("the metrics store is not open")
        return self._connection

    async def open(self) -> None:
        """Open the file.

        Raises:
            StoreUnavailableError: Another process has it open.
            StoreError: It cannot be opened.
        """
        try:
            await self._run(self._writer, self._open)
        except StoreUnavailableError as error:
            if self._connection is None and _LOCKED in str(error):
                raise StoreUnavailableError(f"{error}. {ONE_PROCESS}") from None
            raise StoreError(f"{error}. {NOT_OURS}") from None

    async def write(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what changes the file, in the order of the calls."""
        return await self._run(self._writer, work, *arguments)

    async def read(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what only reads."""
        return await self._run(self._readers, work, *arguments)

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            connection, self._connection, self._opened = self._connection, None, None
            await self._run(self._writer, connection.close)
        self._closed = True
        self._writer.shutdown()
        self._readers.shutdown()

    def _open(self) -> None:
        connection = duckdb.connect(
            str(self._path),
            config={
                "memory_limit": f"{self._memory_bytes // 2**20}MiB",
                "threads": 2,
                "enable_external_access": False,  # rules come from people: a query must not read files
            },
        )
        connection.execute("SET TimeZone = 'UTC'").fetchall()
        if self._prepare(connection):
            self.since = self._clock()
        connection.execute("SET lock_configuration = true").fetchall()
        self._connection, self._opened = connection, _identity(self._path)

    def _open_again(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(duckdb.Error):
                self._connection.close()
            self._connection = None
        try:
            self._open()
        except duckdb.Error as error:
            self.trouble = f"the metrics file {self._path} cannot be opened again: {line(error)}. {NOT_OURS}"
            raise StoreUnavailableError(self.trouble) from None
        self._spoilt, self.trouble = False, ""

    def _fate(self) -> str:
        """Return what became of the open file; empty when it is where it was, or we have none."""
        if self._opened is None:
            return ""
        found = _identity(self._path)
        if found is None:
            return "was deleted"
        return "was replaced" if found != self._opened else ""

    def _note_taken(self, fate: str) -> None:
        """The file is not the one that we write to: what is in ours is lost, and we go on with what is in its place."""
        lost = 0
        with contextlib.suppress(duckdb.Error, StoreError):
            lost = self._count(self.connection)
        log.error(
            "the metrics file %s %s while in use: its %d rows are lost, and it is made anew", self._path, fate, lost
        )
        self.lost_rows += lost
        self.since = self._clock()
        self._opened, self._spoilt = None, True

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise StoreError("the metrics store is closed")
        loop = asyncio.get_running_loop()
        try:
            async with self._mending:
                if fate := self._fate():
                    await loop.run_in_executor(self._writer, self._note_taken, fate)
                if self._spoilt:
                    if self._working:  # while any of these has the file open DuckDB would hand out the same again
                        await asyncio.wait(self._working)
                    await loop.run_in_executor(self._writer, self._open_again)
            working = loop.run_in_executor(pool, work, *arguments)
            self._working.add(working)
            working.add_done_callback(self._working.discard)
            return await working
        except (duckdb.FatalException, duckdb.InternalException) as error:
            # As when a checkpoint finds the disk full. DuckDB then refuses everything until the file is opened anew.
            self._spoilt = True
            raise StoreUnavailableError(line(error)) from None
        except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.TransactionException) as error:
            raise StoreUnavailableError(line(error)) from None
        except duckdb.Error as error:
            raise StoreError(line(error)) from None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def line(error: Exception) -> str:
    """Return what DuckDB says on one line."""
    return " ".join(str(error).split())
