"""Metrics in DuckDB, in this process: nothing to install, and as good as one machine's disk.

A DuckDB file belongs to one process. Rows go through an appender into a staging table and from there, in one transaction,
over those with the same time and tags. DuckDB blocks, so it works in threads of its own (:mod:`consumers.metrics.duckfile`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self

import duckdb

from consumers.metrics.duckfile import DuckFile
from consumers.metrics.store import Result, StoreError, StoreUnavailableError
from consumers.metrics.tables import TABLES, Row, Table, Value
from schemas.durations import seconds

MEMORY: Final = Path(":memory:")
DEFAULT_TTL: Final = "30d"
"""How long rows are kept unless somebody says otherwise: a disk is not endless."""

MOST_ROWS: Final = 100_000
"""Rows of an answer; more are nothing that a person or a rule could use."""

_OUR_TABLES: Final = "SELECT 1 FROM duckdb_tables() WHERE NOT temporary AND table_name IN (SELECT unnest(?)) LIMIT 1"

_TYPES: Final = {"double": "DOUBLE", "bigint": "BIGINT", "boolean": "BOOLEAN", "string": "VARCHAR"}


class DuckDBStore:
    """The store in one file.

    Args:
        path: The file; :data:`MEMORY` keeps everything in memory.
        clock: Seconds since the epoch, by which rows grow old.
        memory_bytes: Most memory that DuckDB may take.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float], memory_bytes: int = 1 << 30) -> None:
        self._clock = clock
        self._file = DuckFile(path, memory_bytes=memory_bytes, clock=clock, prepare=self._prepare, count=_rows)
        self._ttl_s = seconds(DEFAULT_TTL, days=True)
        self._staged: dict[str, tuple[str, ...]] = {}

    @property
    def since(self) -> float:
        """See :attr:`DuckFile.since`."""
        return self._file.since

    @property
    def lost_rows(self) -> int:
        """See :attr:`DuckFile.lost_rows`."""
        return self._file.lost_rows

    @property
    def trouble(self) -> str:
        """See :attr:`DuckFile.trouble`."""
        return self._file.trouble

    async def open(self) -> Self:
        """Open the file and create what tables are missing.

        Raises:
            StoreUnavailableError: Another process has it open.
            StoreError: It cannot be opened.
        """
        await self._file.open()
        return self

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Create what tables are missing; return whether all were."""
        fresh = not connection.execute(_OUR_TABLES, [[*TABLES]]).fetchall()
        for table in TABLES.values():
            connection.execute(create(table)).fetchall()
            self._stage(connection, table)
        return fresh

    async def write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        """Store rows; see :meth:`consumers.metrics.store.MetricsStore.write`."""
        await self._file.write(self._write, rows)

    def _write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        connection = self._file.connection
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
        task = asyncio.ensure_future(self._file.read(self._query, sql, running))
        done, _ = await asyncio.wait([task], timeout=timeout)
        if not done:
            for cursor in running:
                cursor.interrupt()
            await asyncio.wait([task])
            task.exception()
            raise StoreUnavailableError(f"no answer within {timeout:g} s")
        return task.result()

    def _query(self, sql: str, running: list[duckdb.DuckDBPyConnection]) -> Result:
        with self._file.connection.cursor() as cursor:
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
        await self._file.write(self._expire)

    def _expire(self) -> None:
        oldest = int((self._clock() - self._ttl_s) * 1000)
        for name in TABLES:
            self._file.connection.execute(f"DELETE FROM {name} WHERE ts < {_instant(oldest)}").fetchall()  # noqa: S608

    async def close(self) -> None:
        """Close the file."""
        await self._file.close()


def _rows(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows there are in all tables; DuckDB need not read them for that."""
    ((found,),) = connection.execute(
        f"SELECT {' + '.join(f'(SELECT count(*) FROM {name})' for name in TABLES)}"  # noqa: S608  names are ours
    ).fetchall()
    return int(found)


def create(table: Table) -> str:
    """Return the SQL that makes a table where it is missing."""
    return f"CREATE TABLE IF NOT EXISTS {table.name} ({_columns(table, 'TIMESTAMPTZ')})"


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
