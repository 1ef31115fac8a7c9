"""Both metrics stores, one behaviour. GreptimeDB is a stand-in, and the real thing where there is a ``greptime`` binary."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import duckdb
import httpx
import pytest
import trustme

from consumers.metrics.duckdb import DuckDBStore
from consumers.metrics.settings import store as open_store
from consumers.metrics.settings import url_from_values, with_login
from consumers.metrics.store import MetricsStore, StoreError, StoreUnavailableError
from consumers.metrics.tables import GPU_USAGE, SYSTEM_LOG, TABLES, WORKER_RESOURCES
from deploy.local.server import free_port
from tests.stores.greptime import GreptimeStandIn

NOW = time.time
SOME = 1_764_500_000_000


def gpu(uuid: str, ts: int = SOME, **values):
    return GPU_USAGE.row(ts, uuid=uuid, node="n 1", pool="a,b=c", **values)


@pytest.fixture
async def stand_in() -> AsyncIterator[GreptimeStandIn]:
    async with GreptimeStandIn() as server:
        yield server


@asynccontextmanager
async def greptime_binary(data: Path) -> AsyncIterator[str]:
    """Run the real thing and yield its URL."""
    binary = shutil.which("greptime")
    if binary is None:
        pytest.skip("no greptime binary on PATH")
    port = free_port()
    command = [binary, "standalone", "start", "--data-home", str(data), "--http-addr", f"127.0.0.1:{port}"]
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    (await client.get(f"http://127.0.0.1:{port}/health")).raise_for_status()
                    break
                await asyncio.sleep(0.1)
        yield f"greptime://127.0.0.1:{port}/public"
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture(params=["duckdb", "duckdb-file", "stand-in", "greptime"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetricsStore]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "duckdb":
                url = "duckdb::memory:"
            case "duckdb-file":
                url = f"duckdb:{tmp_path}/m.duckdb"
            case "stand-in":
                url = (await stack.enter_async_context(GreptimeStandIn())).url
            case _:
                url = await stack.enter_async_context(greptime_binary(tmp_path))
        opened = await open_store(url).open()
        yield opened
        await opened.close()


async def ask(store: MetricsStore, sql: str):
    return (await store.query(sql, timeout=10)).named()


async def test_rows_come_back_as_they_were_written(store: MetricsStore) -> None:
    await store.write(
        {
            GPU_USAGE: [gpu("a", temperature=91.5, memory_bytes=2.0**40), gpu("b", temperature=-1.0)],
            WORKER_RESOURCES: [
                WORKER_RESOURCES.row(SOME, namespace="d", worker='w"\\', gpu_count=2**53 + 1, ready=True)
            ],
            SYSTEM_LOG: [SYSTEM_LOG.row(SOME, component="c", message='a "b" \\ c, d=e', timestamp="t")],
        }
    )
    assert await ask(store, "SELECT ts, uuid, node, pool, temperature, rx FROM tf_gpu_usage ORDER BY uuid") == [
        {"ts": "2025-11-30 10:53:20.000", "uuid": "a", "node": "n 1", "pool": "a,b=c", "temperature": 91.5, "rx": None},
        {"ts": "2025-11-30 10:53:20.000", "uuid": "b", "node": "n 1", "pool": "a,b=c", "temperature": -1.0, "rx": None},
    ]
    assert await ask(store, "SELECT gpu_count, ready, qos FROM tf_worker_resources WHERE gpu_count > 1") in (
        [{"gpu_count": 2**53 + 1, "ready": True, "qos": ""}],
        [{"gpu_count": 2**53 + 1, "ready": True, "qos": None}],  # GreptimeDB has no empty tags
    )
    assert (await ask(store, "SELECT message FROM tf_system_log"))[0]["message"] == 'a "b" \\ c, d=e'


async def test_writing_again_replaces_and_doubles_nothing(store: MetricsStore) -> None:
    batch = [gpu(f"g{n}", SOME + n % 3, temperature=float(n)) for n in range(300)]
    for _ in range(2):
        await store.write({GPU_USAGE: batch})
    await store.write({GPU_USAGE: [gpu("g7", SOME + 1, temperature=99.0), gpu("g7", SOME + 1, temperature=100.0)]})
    (found,) = await ask(store, "SELECT count(*) AS n, max(temperature) AS t FROM tf_gpu_usage WHERE uuid LIKE 'g7'")
    assert found == {"n": 1, "t": 100.0}
    assert await ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 300}]


async def test_every_table_and_column_is_there_from_the_start(store: MetricsStore) -> None:
    for table in TABLES.values():
        columns = ", ".join(table.columns)
        assert (await store.query(f"SELECT {columns} FROM {table.name}", timeout=10)).rows == []


async def test_windows_count_back_from_now(store: MetricsStore) -> None:
    now = int(NOW() * 1000)
    await store.write({GPU_USAGE: [gpu("old", now - 40_000, rx=1.0), gpu("new", now - 20_000, rx=1.0)]})
    found = await ask(store, "SELECT uuid FROM tf_gpu_usage WHERE ts >= now() - '30s'::INTERVAL")
    assert found == [{"uuid": "new"}]


async def test_a_wrong_query_is_refused_and_nothing_is_lost(store: MetricsStore) -> None:
    await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
    for wrong in ("SELECT nothing FROM tf_gpu_usage", "SELECT FROM WHERE", "SELECT * FROM missing"):
        with pytest.raises(StoreError) as caught:
            await store.query(wrong, timeout=10)
        assert not isinstance(caught.value, StoreUnavailableError)
    assert await ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 1}]


async def test_many_tasks_may_use_one_store(store: MetricsStore) -> None:
    await asyncio.gather(*(store.write({GPU_USAGE: [gpu(f"g{n}", rx=1.0)]}) for n in range(20)))
    counts = await asyncio.gather(*(ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") for _ in range(20)))
    assert counts == [[{"n": 20}]] * 20


async def test_duckdb_drops_what_is_older_than_its_time_to_live_and_keeps_files(tmp_path: Path) -> None:
    clock = [SOME / 1000]
    path = tmp_path / "m.duckdb"
    store = await DuckDBStore(path, clock=lambda: clock[0]).open()
    await store.write({GPU_USAGE: [gpu("a", rx=1.0), gpu("b", SOME + 3_600_000, rx=1.0)]})
    await store.set_ttl("2h")
    await store.close()
    store = await DuckDBStore(path, clock=lambda: clock[0]).open()
    await store.set_ttl("2h")
    assert await ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 2}]
    clock[0] += 2.5 * 3600
    await store.expire()
    assert await ask(store, "SELECT uuid FROM tf_gpu_usage") == [{"uuid": "b"}]
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.query("SELECT 1", timeout=1)


async def test_duckdb_lets_no_query_write_read_files_or_change_settings(tmp_path: Path) -> None:
    store = await open_store(f"duckdb:{tmp_path}/m.duckdb").open()
    await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
    for forbidden in (
        "DELETE FROM tf_gpu_usage",
        "WITH gone AS (DELETE FROM tf_gpu_usage RETURNING *) SELECT * FROM gone",
        "SELECT * FROM read_text('/etc/hostname')",
        "SET enable_external_access = true",
        "ATTACH '/tmp/x.duckdb'",
    ):
        with pytest.raises(StoreError):
            await store.query(forbidden, timeout=5)
    assert await ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 1}]
    await store.close()


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Have another process hold a file."""
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"1\n"
            yield
        finally:
            other.kill()


async def test_duckdb_says_what_to_do_about_a_file_that_it_cannot_open(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 5000)
    for path in (tmp_path / "junk", tmp_path / "no" / "such", tmp_path):
        with pytest.raises(StoreError, match="Name a file that can be written") as caught:
            await open_store(f"duckdb:{path}").open()
        assert not isinstance(caught.value, StoreUnavailableError)
    taken = tmp_path / "taken"
    with (
        holding(taken),
        pytest.raises(StoreUnavailableError, match="belongs to one process: end that one, let `gpubus up`"),
    ):
        await open_store(f"duckdb:{taken}").open()
    await (await open_store(f"duckdb:{taken}").open()).close()


async def test_duckdb_opens_its_file_anew_after_an_error_that_spoils_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"duckdb:{tmp_path}/m.duckdb").open()
    await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
    with monkeypatch.context() as broken:

        def full(*_: object) -> None:
            raise duckdb.FatalException("a checkpoint found the disk full")

        broken.setattr(DuckDBStore, "_replace", full)
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await store.write({GPU_USAGE: [gpu("b", rx=1.0)]})
    connection = store._file.connection
    await asyncio.gather(store.write({GPU_USAGE: [gpu("b", rx=1.0)]}), ask(store, "SELECT 1"), ask(store, "SELECT 2"))
    assert store._file.connection is not connection
    assert await ask(store, "SELECT uuid FROM tf_gpu_usage ORDER BY uuid") == [{"uuid": "a"}, {"uuid": "b"}]
    await store.close()


@pytest.mark.parametrize("fate", ["deleted", "replaced"])
async def test_a_file_that_is_taken_away_is_noticed_counted_and_made_anew(
    tmp_path: Path, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "m.duckdb", [SOME / 1000]
    await (await DuckDBStore(path, clock=NOW).open()).close()
    store = await DuckDBStore(path, clock=lambda: clock[0]).open()
    assert store.since == 0
    await store.write({GPU_USAGE: [gpu("a", rx=1.0), gpu("b", rx=1.0)]})
    if fate == "deleted":
        path.unlink()
    else:
        duckdb.connect(tmp_path / "other").close()
        (tmp_path / "other").rename(path)
    clock[0] += 100
    # Two queries that run while it is noticed keep it from nothing.
    await asyncio.gather(store.write({GPU_USAGE: [gpu("c", rx=1.0)]}), ask(store, "SELECT 1"), ask(store, "SELECT 2"))
    assert await ask(store, "SELECT uuid FROM tf_gpu_usage") == [{"uuid": "c"}]
    assert (store.lost_rows, store.since, store.trouble) == (2, SOME / 1000 + 100, "")
    assert f"m.duckdb was {fate} while in use: its 2 rows are lost" in caplog.text
    await store.close()
    again = await DuckDBStore(path, clock=NOW).open()
    assert await ask(again, "SELECT uuid FROM tf_gpu_usage") == [{"uuid": "c"}]
    await again.close()


async def test_a_file_that_cannot_be_made_anew_says_what_to_do_until_somebody_does_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = await open_store(f"duckdb:{home}/m.duckdb").open()
    assert abs(store.since - NOW()) < 60  # there is nothing from before
    await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
    shutil.rmtree(home)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"m\.duckdb cannot be opened again: .*\. Name a file that"):
            await store.write({GPU_USAGE: [gpu("b", rx=1.0)]})
    assert "cannot be opened again" in store.trouble
    home.mkdir()
    (home / "m.duckdb").write_bytes(b"junk" * 5000)
    with pytest.raises(StoreUnavailableError, match="not a valid DuckDB database"):
        await ask(store, "SELECT 1")
    (home / "m.duckdb").unlink()
    await store.write({GPU_USAGE: [gpu("b", rx=1.0)]})
    assert await ask(store, "SELECT uuid FROM tf_gpu_usage") == [{"uuid": "b"}]
    assert (store.trouble, store.lost_rows) == ("", 1)
    await store.close()


async def test_duckdb_ends_a_query_that_takes_too_long() -> None:
    store = await open_store("duckdb::memory:").open()
    with pytest.raises(StoreUnavailableError, match="no answer within"):
        await store.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b", timeout=0.1)
    assert await ask(store, "SELECT 1 AS one") == [{"one": 1}]
    await store.close()


async def test_greptime_tries_again_what_may_work_and_nothing_else(stand_in: GreptimeStandIn) -> None:
    store = await open_store(stand_in.url).open()
    stand_in.fail = ["503", "cut"]
    await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
    stand_in.fail = ["partial"]
    await store.write({GPU_USAGE: [gpu(f"p{n}", rx=1.0) for n in range(9)]})
    assert await ask(store, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 10}]
    stand_in.fail = ["503"] * 3
    with pytest.raises(StoreUnavailableError, match="told to fail"):
        await store.write({GPU_USAGE: [gpu("b", rx=1.0)]})
    before = len(stand_in.requests)
    stand_in.fail = ["400"]
    with pytest.raises(StoreError, match=r"refused \(400, code 1004\): told to fail") as caught:
        await store.write({GPU_USAGE: [gpu("b", rx=1.0)]})
    assert not isinstance(caught.value, StoreUnavailableError)
    assert len(stand_in.requests) == before + 1
    await store.close()


@pytest.mark.parametrize("failure", ["slow", "cut", "garbage", "503"])
async def test_greptime_says_that_no_answer_came(stand_in: GreptimeStandIn, failure: str) -> None:
    store = await open_store(stand_in.url).open()
    stand_in.fail = [failure]
    with pytest.raises(StoreUnavailableError):
        await store.query("SELECT 1", timeout=0.3)
    assert await ask(store, "SELECT 1 AS one") == [{"one": 1}]
    await store.close()


async def test_greptime_takes_user_and_password_and_says_when_they_are_wrong() -> None:
    async with GreptimeStandIn(user="u", password="p:/ä") as server:
        await _with_password(server)


async def _with_password(server: GreptimeStandIn) -> None:
    good = url_from_values({"host": "127.0.0.1", "httpPort": server.port, "user": "u", "password": "p:/ä"})
    store = await open_store(good).open()
    await store.set_ttl("30d")
    assert server.ttl == dict.fromkeys(TABLES, "30d")
    await store.close()
    bad = open_store(good.replace("u:", "v:"))
    with pytest.raises(StoreError, match="invalid username or password"):
        await bad.open()
    await bad.close()


async def test_a_missing_table_does_not_keep_the_others_from_their_time_to_live(stand_in: GreptimeStandIn) -> None:
    store = await open_store(stand_in.url).open()
    stand_in._run("DROP TABLE tf_system_log")
    await store.set_ttl("7d")
    assert set(stand_in.ttl) == set(TABLES) - {"tf_system_log"}
    await store.close()


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"host": "g.ns.svc", "port": 4002, "db": "public"}, "greptime://g.ns.svc:4000/public"),
        (
            {"isCloud": True, "host": "i.aws.greptime.cloud", "port": 5001, "db": "d", "user": "u", "password": "p@"},
            "greptimes://u:p%40@i.aws.greptime.cloud:443/d",
        ),
    ],
)
def test_chart_values_name_the_store(values: dict, url: str) -> None:
    assert url_from_values(values) == url


def test_a_login_may_come_apart_from_the_place() -> None:
    plain = url_from_values({"host": "h", "db": "d"})
    assert with_login(plain, "u", "p:/ä") == url_from_values({"host": "h", "db": "d", "user": "u", "password": "p:/ä"})
    assert with_login(plain, "", "") == plain
    for url, user, password in ((plain, "u", ""), (plain, "", "p"), (f"greptime://{'a:b'}@h/d", "u", "p")):
        with pytest.raises(ValueError, match="user and password"):
            with_login(url, user, password)


@pytest.mark.parametrize(
    "url", ["", "mysql://x", "greptime://", "greptime://h/a/b", "greptime://u:secret@h:x/d", "duckdb:"]
)
def test_what_names_no_store_is_refused_without_telling_passwords(url: str) -> None:
    with pytest.raises(ValueError, match="is not understood: write duckdb:") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


async def test_the_cloud_is_spoken_to_over_tls_and_only_with_a_certificate_that_we_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with GreptimeStandIn(user="u", password="p", tls=tls) as server:
        values = {"isCloud": True, "host": "127.0.0.1", "httpPort": server.port, "user": "u", "password": "p"}
        url = url_from_values(values)
        stranger = open_store(url)
        with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
            await stranger.open()
        await stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        store = await open_store(url).open()
        await store.write({GPU_USAGE: [gpu("a", rx=1.0)]})
        assert await ask(store, "SELECT uuid FROM tf_gpu_usage") == [{"uuid": "a"}]
        await store.close()
