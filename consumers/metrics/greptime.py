"""Metrics in GreptimeDB, over its HTTP interface: line protocol in, SQL out.

Source: GreptimeDB documentation, "HTTP API" (``/v1/sql``, Basic authentication, ``X-Greptime-Timeout``) and "InfluxDB Line
Protocol" (``/v1/influxdb/api/v2/write``). Rows with the time and tags of stored ones replace them there, so that what was
written in part is simply written again.
"""

import asyncio
import contextlib
import gzip
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import httpx
import msgspec

from consumers.metrics.lines import encode
from consumers.metrics.store import Result, StoreError, StoreUnavailableError
from consumers.metrics.tables import TABLES, Row, Table, Value
from schemas.durations import seconds

WRITE_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 3.0
TRIES: Final = 3
BACK_OFF_S: Final = 0.2
MOST_ROWS: Final = 10_000
"""Rows of one request: about three megabytes, compressed to a tenth."""

_TABLE_NOT_FOUND: Final = 4001
_TYPES: Final = {"double": "DOUBLE", "bigint": "BIGINT", "boolean": "BOOLEAN", "string": "STRING"}
_OK: Final = 200
_SERVER_ERROR: Final = 500
_LOGIN: Final = frozenset((401, 403))
_TRANSIENT: Final = frozenset((408, 425, 429))
_TICKS_PER_S: Final = {"Second": 1, "Millisecond": 1_000, "Microsecond": 1_000_000, "Nanosecond": 1_000_000_000}


class _Column(msgspec.Struct):
    name: str
    data_type: str


class _Schema(msgspec.Struct):
    column_schemas: list[_Column]


class _Records(msgspec.Struct):
    rows: list[list[Any]]
    schema: _Schema


class _Output(msgspec.Struct):
    records: _Records | None = None
    affectedrows: int | None = None


class _Answer(msgspec.Struct):
    code: int = 0
    error: str = ""
    output: list[_Output] = []


_answer = msgspec.json.Decoder(_Answer)


class GreptimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GreptimeDB is. ``url`` is its base, such as ``http://greptimedb:4000`` or ``https://host`` for the cloud."""

    url: str
    database: str = "public"
    user: str = ""
    password: str = ""


class GreptimeStore:
    """The store behind one base URL.

    A server tells nobody when somebody has emptied it, and what it cannot do now it may do later: it is never in trouble.
    """

    since = 0.0
    lost_rows = 0
    trouble = ""

    def __init__(self, settings: GreptimeSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        auth = httpx.BasicAuth(settings.user, settings.password) if settings.user else None
        self._client = httpx.AsyncClient(
            base_url=settings.url,
            auth=auth,
            timeout=httpx.Timeout(WRITE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=16),
            transport=transport,
        )
        self._tags: dict[str, set[str]] = {}

    async def open(self) -> Self:
        """Create what tables are missing; see :meth:`consumers.metrics.store.MetricsStore.open`."""
        for table in TABLES.values():
            tags = ", ".join(f"{tag} STRING" for tag in table.tags)
            fields = "".join(f", {name} {_TYPES[kind]}" for name, kind in table.fields.items())
            await self._sql(
                f"CREATE TABLE IF NOT EXISTS {table.name} (ts TIMESTAMP(3) TIME INDEX, {tags}{fields}, "
                f"PRIMARY KEY ({', '.join(table.tags)})) WITH ('merge_mode' = 'last_non_null')",
                timeout=WRITE_TIMEOUT_S,
            )
        return self

    async def write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        """Store rows; see :meth:`consumers.metrics.store.MetricsStore.write`."""
        for table, batch in rows.items():
            await self._widen(table)
            for start in range(0, len(batch), MOST_ROWS):
                await self._write(encode(table, batch[start : start + MOST_ROWS]))

    async def _widen(self, table: Table) -> None:
        """Add tags that a table has got: a row only brings a column along where it has a value for it."""
        known = self._tags.setdefault(table.name, set(TABLES[table.name].tags))
        for tag in [tag for tag in table.tags if tag not in known]:
            with contextlib.suppress(_RefusedError):  # by a version that knows no IF NOT EXISTS: then rows bring it
                sql = f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {tag} STRING PRIMARY KEY"
                await self._sql(sql, timeout=WRITE_TIMEOUT_S)
            known.add(tag)

    async def _write(self, lines: bytes) -> None:
        if not lines:
            return
        body = await asyncio.to_thread(gzip.compress, lines, 1)
        tries = 0
        while True:
            tries += 1
            try:
                async with _reachable():
                    response = await self._client.post(
                        "/v1/influxdb/api/v2/write",
                        params={"db": self._settings.database, "precision": "ms"},
                        content=body,
                        headers={"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"},
                    )
                if response.is_success:
                    return
                error = _refused(response)
                # A login that is refused will be put right; rows that wait for that must not be given up.
                raise StoreUnavailableError(str(error)) if response.status_code in _LOGIN else error
            except StoreUnavailableError:
                if tries == TRIES:
                    raise
                await asyncio.sleep(BACK_OFF_S * 2**tries * random.uniform(0.5, 1.0))  # noqa: S311  jitter

    async def query(self, sql: str, *, timeout: float) -> Result:
        """Run a query; see :meth:`consumers.metrics.store.MetricsStore.query`."""
        answer = await self._sql(sql, timeout=timeout)
        records = answer.output[0].records if answer.output else None
        if records is None:
            raise StoreError("the query returned no rows and no columns: is it a SELECT?")
        columns = records.schema.column_schemas
        ticks = [_ticks(column.data_type) for column in columns]
        rows = [tuple(_plain(value, tick) for value, tick in zip(row, ticks, strict=True)) for row in records.rows]
        return Result(tuple(column.name for column in columns), rows)

    async def set_ttl(self, ttl: str) -> None:
        """Have the server drop rows older than ``ttl``; a table that does not exist yet is passed over."""
        seconds(ttl, days=True)
        for name in TABLES:
            try:
                await self._sql(f"ALTER TABLE {name} SET 'ttl' = '{ttl}'", timeout=WRITE_TIMEOUT_S)
            except _MissingTableError:
                continue

    async def expire(self) -> None:
        """Nothing: the server does."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _sql(self, sql: str, *, timeout: float) -> _Answer:
        try:
            async with _reachable(), asyncio.timeout(timeout):
                response = await self._client.post(
                    "/v1/sql",
                    params={"db": self._settings.database},
                    data={"sql": sql},
                    headers={"X-Greptime-Timeout": f"{max(int(timeout), 1)}s", "X-Greptime-Timezone": "UTC"},
                    timeout=timeout,
                )
        except TimeoutError:
            raise StoreUnavailableError(f"no answer within {timeout:g} s") from None
        if response.status_code != _OK:
            raise _refused(response)
        answer = _decoded(response)
        if answer.code:
            raise _error(answer, response.status_code)
        return answer


class _RefusedError(StoreError):
    """The server understood, and refused for good."""


class _MissingTableError(_RefusedError):
    """There is no such table."""


@contextlib.asynccontextmanager
async def _reachable() -> AsyncIterator[None]:
    """Turn what the network does to us into our error."""
    try:
        yield
    except (httpx.TransportError, httpx.StreamError) as error:
        raise StoreUnavailableError(f"GreptimeDB: {str(error) or type(error).__name__}") from None


def _decoded(response: httpx.Response) -> _Answer:
    try:
        return _answer.decode(response.content)
    except msgspec.DecodeError as error:
        raise StoreUnavailableError(f"GreptimeDB answered with what is no answer: {error}") from None


def _refused(response: httpx.Response) -> StoreError:
    try:
        answer = _answer.decode(response.content)
    except msgspec.DecodeError:
        answer = _Answer(error=response.text[:200])
    return _error(answer, response.status_code)


def _error(answer: _Answer, status: int) -> StoreError:
    text = f"GreptimeDB refused ({status}, code {answer.code}): {answer.error or 'without a reason'}"
    if answer.code == _TABLE_NOT_FOUND:
        return _MissingTableError(text)
    if status >= _SERVER_ERROR or status in _TRANSIENT:
        return StoreUnavailableError(text)
    return _RefusedError(text)


def _ticks(data_type: str) -> int:
    """Return ticks per second of an instant's type, or 0 when it is none."""
    return _TICKS_PER_S.get(data_type.removeprefix("Timestamp"), 0) if data_type.startswith("Timestamp") else 0


def _plain(value: Any, ticks: int) -> Value:
    if value is None or not ticks:
        return value if value is None or isinstance(value, str | int | float) else str(value)
    whole, part = divmod(int(value), ticks)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{part * 1000 // ticks:03}"
