"""Which bus a command reads: one that runs (``--nats``), or the files of one that is stopped (``--store``)."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import typer

from deploy.cli.errors import BusUnavailableError, InputError

if TYPE_CHECKING:
    from bus.connection import Bus
    from bus.security import Security

T = TypeVar("T")

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
URL_VARIABLE: Final = "GPUBUS_NATS"
CONNECT_TIMEOUT_S = 4.0
READY_TIMEOUT_S = 20.0
"""How long streams may take to find their leader, which three servers that have just started need a moment for."""

_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_PASSWORD: Final = re.compile(r"//[^/@\s]*@")

NatsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help=f"NATS server; repeat or separate by commas for several. [env: {URL_VARIABLE}] [default: {DEFAULT_URL}]",
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Read the files of a stopped bus: serve them while the command runs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end, on uvloop where there is one.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it. A command with a way of its own to stop replaces the signal handler.
    """
    interruptible = _interruptible(work)
    if sys.platform == "win32":
        return asyncio.run(interruptible)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(interruptible)
    return uvloop.run(interruptible)


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    from bus.tasks import end

    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []
    # The loop's own way is to cancel once, and a single cancellation may be swallowed.
    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, lambda: ending.append(loop.create_task(end(task))))
    await asyncio.wait([task])
    if ending:
        raise KeyboardInterrupt
    return task.result()


def servers(nats: list[str] | None) -> list[str]:
    """Return the servers to connect to, from the option, the environment or the default.

    Raises:
        InputError: One of them is no NATS URL.
    """
    given, origin = (nats, "--nats") if nats else ([os.environ.get(URL_VARIABLE) or DEFAULT_URL], URL_VARIABLE)
    urls = [url.strip() for text in given for url in text.split(",") if url.strip()]
    if not urls:
        raise InputError(f"{origin} names no server: write one such as {DEFAULT_URL}")
    return [_checked(url, origin) for url in urls]


def _checked(url: str, origin: str) -> str:
    full = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(full)
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"{origin} {_hide_password(url)!r} is no NATS URL: write one such as {DEFAULT_URL}")
    return full


def security() -> "Security":
    """Return what the environment says is to be shown to the bus.

    Raises:
        SecurityError: It says half of it.
    """
    from bus.security import Security

    return Security.of(os.environ)


def _hide_password(text: str) -> str:
    return _PASSWORD.sub("//***@", text)


def replicas(store: Path) -> int:
    """Return how many servers wrote a store directory.

    Raises:
        InputError: It holds no store. One is never created here: an empty answer from a mistyped name would mislead.
    """
    if not store.is_dir():
        raise InputError(f"--store {store} is no directory: name the one that gpubus kept its files in")
    if (store / "jetstream").is_dir():
        return 1
    parts = [(store / f"n{i}" / "jetstream").is_dir() for i in (1, 2, 3)]
    if all(parts):
        return len(parts)
    if any(parts):
        raise InputError(f"--store {store} is only a part of a store of three: n1, n2 and n3 must all be there")
    raise InputError(f"--store {store} holds no JetStream store: name the directory that gpubus kept its files in")


@asynccontextmanager
async def open_bus(nats: list[str] | None, store: Path | None) -> AsyncIterator["Bus"]:
    """Connect for reading; nothing is declared or changed on the bus.

    Raises:
        InputError: The options contradict each other or name no bus.
        BusUnavailableError: The bus is unreachable, holds no streams of ours, or stopped answering.
        LocalBusError: The store cannot be served.
    """
    if nats and store is not None:
        raise InputError("--nats and --store name two buses: keep one of them")
    # Imported here, after the command line is known to be right: the client takes a fifth of a second to load.
    import nats.errors as nats_errors

    from bus.connection import Bus
    from bus.errors import BusUnreachableError
    from bus.security import OPEN
    from deploy.local.server import LocalBus

    async with AsyncExitStack() as stack:
        if store is None:
            urls, shown = servers(nats), security()
        else:
            local = await stack.enter_async_context(LocalBus(store, replicas=replicas(store)))
            urls, shown = local.urls, OPEN
        try:
            connecting = Bus.connect(urls, name="gpubus-cli", timeout=CONNECT_TIMEOUT_S, security=shown)
            bus = await stack.enter_async_context(await connecting)
            await _ready(bus, wait_all=store is not None)
            yield bus
        except BusUnreachableError as error:
            raise BusUnavailableError(_hide_password(str(error))) from error
        except (nats_errors.Error, TimeoutError) as error:
            cause = str(error) or type(error).__name__
            where = _hide_password(", ".join(urls))
            raise BusUnavailableError(f"NATS at {where} stopped answering: {cause}; try again") from error


async def _ready(bus: "Bus", *, wait_all: bool) -> None:
    """Wait until the streams answer; all of them where the servers were started by us a moment ago."""
    from bus.errors import BusError
    from bus.streams import LEDGER, StreamLimits, declarations, require_streams

    names = [config.name or "" for config in declarations(StreamLimits())] if wait_all else [LEDGER]
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            for name in names:
                await _answers(bus, name)
            await require_streams(bus)
    except TimeoutError:
        raise BusUnavailableError(
            f"the streams found no leader within {READY_TIMEOUT_S:g} s: try again, or start the server with JetStream"
        ) from None
    except BusError as error:
        raise BusUnavailableError(str(error)) from error


async def _answers(bus: "Bus", stream: str) -> None:
    """Wait until a stream has a leader, or it is clear that there is no such stream."""
    import nats.errors as nats_errors

    from bus.errors import ApiError

    patience = 0.5  # nobody answers for a stream without leader, so a long wait for the answer would be lost
    while True:
        try:
            await bus.api(f"STREAM.INFO.{stream}", timeout=patience)
        except (nats_errors.Error, TimeoutError):
            patience = min(patience + 0.25, 5.0)
        except ApiError as error:
            if error.code < 500:  # noqa: PLR2004  as HTTP has it: the server has made up its mind
                return
        else:
            return
        await asyncio.sleep(0.1)
