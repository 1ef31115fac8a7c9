"""A stand-in for GreptimeDB, written from its documented HTTP protocol, with DuckDB for the SQL.

It can be told to fail in the ways a real one does: to refuse, to be slow, to write a part of a request, to cut connections.
"""

import asyncio
import base64
import gzip
import json
import re
import ssl
from datetime import UTC, datetime
from typing import Self
from urllib.parse import parse_qs, urlsplit

import duckdb

_LINE = re.compile(r"((?:\\.|[^ ])+) (.+) ([0-9]+)$", re.DOTALL)
_SPLIT_TAGS = re.compile(r"(?<!\\),")
_FIELDS = re.compile(r'([a-z0-9_]+)=("(?:\\.|[^"\\])*"|[^,]+)(?:,|$)')

_CODES = {"503": 1003, "400": 1004, "401": 7002}


class GreptimeStandIn:
    """Serves ``/v1/sql`` and ``/v1/influxdb/api/v2/write`` on a free port."""

    def __init__(self, *, user: str = "", password: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._auth = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self._db = duckdb.connect()
        self._db.execute("SET TimeZone = 'UTC'").fetchall()
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys: dict[str, list[str]] = {}
        self._rows: dict[str, dict[tuple, dict]] = {}
        self._dirty: set[str] = set()
        self.port = 0
        self.requests: list[str] = []
        self.keep = True
        """Whether rows are kept; a benchmark of the client has no use for them."""
        self.lines = 0
        self.ttl: dict[str, str] = {}
        self.fail: list[str] = []
        """How the next requests fail, one each: ``503``, ``400``, ``401``, ``cut``, ``partial``, ``slow``, ``garbage``."""

    @property
    def url(self) -> str:
        return f"greptime://127.0.0.1:{self.port}/public"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        self._db.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = {
                    k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = head.split("\r\n", 1)[0].split(" ")
                await self._handle(writer, method, target, headers, body)
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _handle(self, writer, method, target, headers, body) -> None:
        url = urlsplit(target)
        self.requests.append(f"{method} {url.path}")
        failure = self.fail.pop(0) if self.fail else ""
        if failure == "cut":
            writer.transport.abort()
            raise ConnectionError
        if failure == "slow":
            await asyncio.sleep(1)
        if failure == "garbage":
            return self._answer(writer, 200, b"<html>proxy</html>")
        if failure in _CODES:
            return self._error(writer, int(failure), _CODES[failure], "told to fail")
        if self._auth and headers.get("authorization") != self._auth:
            return self._error(writer, 401, 7003, "auth failed: invalid username or password")
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if method == "POST" and url.path == "/v1/influxdb/api/v2/write":
            assert parse_qs(url.query) == {"db": ["public"], "precision": ["ms"]}
            return self._write(writer, body.decode().split("\n"), failure)
        if method == "POST" and url.path == "/v1/sql":
            return self._sql(writer, parse_qs(body.decode())["sql"][0])
        return self._error(writer, 404, 1004, "no such endpoint")

    def _write(self, writer, lines: list[str], failure: str) -> None:
        self.lines += len(lines)
        if self.keep:
            for line in lines[: len(lines) // 2] if failure == "partial" else lines:
                self._store(line)
        if failure == "partial":
            return self._error(writer, 500, 1003, "some regions are unavailable")
        return self._answer(writer, 204, b"")

    def _store(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        assert match is not None, line
        table, *tags = _SPLIT_TAGS.split(match[1])
        values = {k: _unescape(v) for k, _, v in (tag.partition("=") for tag in tags)}
        for tag in values.keys() - set(self._keys[table]):  # a tag that is new becomes a column and a part of the key
            self._add_tag(table, tag)
        key = (int(match[3]), *(values.get(tag) for tag in self._keys[table]))
        fields = {name: _value(text) for name, text in _FIELDS.findall(match[2])}
        self._rows[table].setdefault(key, {}).update(fields)  # merge_mode last_non_null
        self._dirty.add(table)

    def _add_tag(self, table: str, tag: str) -> None:
        if tag not in self._keys[table]:
            self._run(f"ALTER TABLE {table} ADD COLUMN {tag} VARCHAR")
            self._keys[table].append(tag)
            self._rows[table] = {(*key, None): fields for key, fields in self._rows[table].items()}

    def _load(self) -> None:
        """Bring what was written to where SQL finds it."""
        for table in self._dirty:
            columns = [row[0] for row in self._run(f"DESCRIBE {table}")][1:]
            self._run(f"DELETE FROM {table}")
            appender = self._db.appender(table)
            for (at, *tags), fields in self._rows[table].items():
                values = dict(zip(self._keys[table], tags, strict=True)) | fields
                appender.append_rows(
                    [(datetime.fromtimestamp(at / 1000, UTC).replace(tzinfo=None), *map(values.get, columns))]
                )
            appender.flush()
        self._dirty.clear()

    def _run(self, sql: str, parameters=()) -> list:
        return self._db.execute(sql, list(parameters)).fetchall()

    def _sql(self, writer, sql: str) -> None:
        try:
            if match := re.match(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*), PRIMARY KEY \((.*)\)\) WITH", sql):
                self._keys[match[1]] = match[3].split(", ")
                self._rows.setdefault(match[1], {})
                columns = match[2].replace("TIMESTAMP(3) TIME INDEX", "TIMESTAMP_MS").replace("STRING", "VARCHAR")
                self._run(f"CREATE TABLE IF NOT EXISTS {match[1]} ({columns})")
                output = {"affectedrows": 0}
            elif match := re.match(r"ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+) STRING PRIMARY KEY", sql):
                self._add_tag(match[1], match[2])
                output = {"affectedrows": 0}
            elif match := re.match(r"ALTER TABLE (\w+) SET 'ttl' = '(\w+)'", sql):
                if not self._run("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [match[1]]):
                    return self._error(writer, 400, 4001, f"Table not found: {match[1]}")
                self.ttl[match[1]] = match[2]
                output = {"affectedrows": 0}
            else:
                self._load()
                cursor = self._db.execute(sql)
                schema = [{"name": c[0], "data_type": _type(str(c[1]))} for c in cursor.description]
                rows = [[_json(value) for value in row] for row in cursor.fetchall()]
                output = {"records": {"schema": {"column_schemas": schema}, "rows": rows, "total_rows": len(rows)}}
        except duckdb.Error as error:
            return self._error(writer, 400, 1004 if "Parser" in type(error).__name__ else 3000, str(error))
        return self._answer(writer, 200, json.dumps({"output": [output], "execution_time_ms": 1}).encode())

    def _error(self, writer, status: int, code: int, text: str) -> None:
        self._answer(writer, status, json.dumps({"code": code, "error": text, "execution_time_ms": 0}).encode())

    def _answer(self, writer, status: int, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def _unescape(text: str) -> str:
    return re.sub(r"\\([,= ])", r"\1", text)


def _value(text: str):
    if text.startswith('"'):
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    return int(text[:-1]) if text.endswith("i") else float(text)


def _type(name: str) -> str:
    return {"TIMESTAMP_MS": "TimestampMillisecond", "DOUBLE": "Float64", "BIGINT": "Int64"}.get(name, "String")


def _json(value):
    return int(value.replace(tzinfo=UTC).timestamp() * 1000) if hasattr(value, "timestamp") else value
