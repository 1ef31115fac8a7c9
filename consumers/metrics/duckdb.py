"""Metrics in DuckDB, in this process: nothing to install, and as good as one machine's disk.

A DuckDB file belongs to one process. Rows go through an appender into a staging table and from there, in one transaction,
over those with the same time and tags. DuckDB blocks, so it works in threads of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import duckdb

from consumers.metrics.store import Result, StoreError, StoreUnavailableError
from consumers.metrics.tables import TABLES, Row, Table, Value
from schemas.durations import seconds

T = TypeVar("T")

MEMORY: Final = Path(":memory:")
DEFAULT_TTL: Final = "30d"
"""How long rows are kept unless somebody says otherwise: a disk is not endless."""

MOST_ROWS: Final = 100_000
"""Rows of an answer; more are nothing that a person or a rule could use."""

ONE_PROCESS: Final = (
    "A DuckDB file belongs to one process: end that one, let `gpubus up` play all roles, "
    "or use GreptimeDB, which any number can share"
)
NOT_OURS: Final = "Name a file that can be written, in a directory that is there, and move away what is no DuckDB file"
_LOCKED: Final = "Could not set lock"

_TYPES: Final = {"double": "DOUBLE", "bigint": "BIGINT", "boolean": "BOOLEAN", "string": "VARCHAR"}


class DuckDBStore:
    """The store in one file.

    Args:
        path: The file; :data:`MEMORY` keeps everything in memory.
        clock: Seconds since the epoch, by which rows grow old.
        memory_bytes: Most memory that DuckDB may take.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float], memory_bytes: int = 1 << 30) -> None:
        self._path = path
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="duckdb-write")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="duckdb-read")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._closed = self._spoilt = False
        self._mending = asyncio.Lock()
        self._ttl_s = seconds(DEFAULT_TTL, days=True)
        self._staged: dict[str, tuple[str, ...]] = {}

    async def open(self) -> Self:
        """Open the file and create what tables are missing.

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
        return self

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
        for table in TABLES.values():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({_columns(table, 'TIMESTAMPTZ')})").fetchall()
            self._stage(connection, table)
        connection.execute("SET lock_configuration = true").fetchall()
        self._connection = connection

    def _open_again(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(duckdb.Error):
                self._connection.close()
            self._connection = None
        self._open()
        self._spoilt = False

    async def write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        """Store rows; see :meth:`consumers.metrics.store.MetricsStore.write`."""
        await self._run(self._writer, self._write, rows)

    def _write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        connection = self._opened()
        for table, batch in rows.items():
            if batch:
                self._replace(connection, table, batch)

    def _stage(self, connection: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Be ready for rows of a table, with whatever tags it has now."""
        for tag in table.tags[len(TABLES[table.name].tags) :]:
            sql = f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {tag} VARCHAR DEFAULT ''"
            connection.execute(sql).fetchall()
        connection.execute(f"CREATE OR REPLACE TEMP TABLE staged_{table.name} ({_columns(table, 'BIGINT')})").fetchall()
        self._staged[table.name] = table.tags

    def _replace(self, connection: duckdb.DuckDBPyConnection, table: Table, batch: Sequence[Row]) -> None:
        if self._staged[table.name] != table.tags:
            self._stage(connection, table)
        staged, keys = f"staged_{table.name}", ("ts", *table.tags)
        same = " AND ".join(f"old.{key} = new.{key}" for key in keys)
        # Of two rows with one key in a batch the later counts.
        distinct = {row[: len(keys)]: row for row in batch}
        connection.execute(f"DELETE FROM {staged}").fetchall()  # noqa: S608  names are ours
        appender = connection.appender(staged)
        appender.append_rows(distinct.values())
        appender.flush()
        first, last = min(row[0] for row in distinct), max(row[0] for row in distinct)  # type: ignore[type-var]
        source = f"SELECT * REPLACE ({_instant('ts')} AS ts) FROM {staged}"  # noqa: S608
        connection.execute("BEGIN").fetchall()
        try:
            connection.execute(
                f"DELETE FROM {table.name} AS old USING ({source}) AS new WHERE {same} "  # noqa: S608
                f"AND old.ts BETWEEN {_instant(first)} AND {_instant(last)}"
            ).fetchall()
            connection.execute(f"INSERT INTO {table.name} BY NAME {source}").fetchall()
            connection.execute("COMMIT").fetchall()
        except duckdb.Error:
            with contextlib.suppress(
                duckdb.Error
            ):  # a commit that failed has rolled back: why it failed is what matters
                connection.execute("ROLLBACK").fetchall()
            raise

    async def query(self, sql: str, *, timeout: float) -> Result:
        """Run a query; see :meth:`consumers.metrics.store.MetricsStore.query`."""
        running: list[duckdb.DuckDBPyConnection] = []
        task = asyncio.ensure_future(self._run(self._readers, self._query, sql, running))
        done, _ = await asyncio.wait([task], timeout=timeout)
        if not done:
            for cursor in running:
                cursor.interrupt()
            await asyncio.wait([task])
            task.exception()
            raise StoreUnavailableError(f"no answer within {timeout:g} s")
        return task.result()

    def _query(self, sql: str, running: list[duckdb.DuckDBPyConnection]) -> Result:
        with self._opened().cursor() as cursor:
            running.append(cursor)
            cursor.execute("BEGIN TRANSACTION READ ONLY").fetchall()
            try:
                cursor.execute(sql)
                columns = tuple(column[0] for column in cursor.description or ())
                found = cursor.fetchmany(MOST_ROWS + 1)
            finally:
                running.clear()
        if len(found) > MOST_ROWS:
            raise StoreError(f"the query found more than {MOST_ROWS} rows: group them")
        return Result(columns, [tuple(map(_plain, row)) for row in found])

    async def set_ttl(self, ttl: str) -> None:
        """Keep rows for ``ttl`` from now on; what is older goes now and whenever :meth:`expire` is called."""
        self._ttl_s = seconds(ttl, days=True)
        await self.expire()

    async def expire(self) -> None:
        """Drop what is older than the time to live."""
        await self._run(self._writer, self._expire)

    def _expire(self) -> None:
        oldest = int((self._clock() - self._ttl_s) * 1000)
        for name in TABLES:
            self._opened().execute(f"DELETE FROM {name} WHERE ts < {_instant(oldest)}").fetchall()  # noqa: S608

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await self._run(self._writer, connection.close)
        self._closed = True
        self._writer.shutdown()
        self._readers.shutdown()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise StoreError("the metrics store is not open")
        return self._connection

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise StoreError("the metrics store is closed")
        try:
            async with self._mending:
                if self._spoilt:
                    await asyncio.get_running_loop().run_in_executor(self._writer, self._open_again)
            return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        except (duckdb.FatalException, duckdb.InternalException) as error:
            # As when a checkpoint finds the disk full. DuckDB then refuses everything until the file is opened anew.
            self._spoilt = True
            raise StoreUnavailableError(_line(error)) from None
        except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.TransactionException) as error:
            raise StoreUnavailableError(_line(error)) from None
        except duckdb.Error as error:
            raise StoreError(_line(error)) from None


def _columns(table: Table, instant: str) -> str:
    tags = [f"{tag} VARCHAR NOT NULL" for tag in table.tags]
    return ", ".join(
        (f"ts {instant} NOT NULL", *tags, *(f"{name} {_TYPES[kind]}" for name, kind in table.fields.items()))
    )


def _instant(ms: object) -> str:
    """Milliseconds as SQL. With time zones, as ``now()`` has them: else a window would be looked for in all there is."""
    return f"make_timestamp_ms({ms})::TIMESTAMPTZ"


def _plain(value: Any) -> Value:
    match value:
        case datetime():
            at = value.astimezone(UTC) if value.tzinfo is not None else value
            return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03}"
        case Decimal():
            return float(value)
        case None | str() | int() | float():
            return value
        case date():
            return value.isoformat()
        case _:
            return str(value)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
