"""NATS over WebSockets, for servers that are reached that way, and nothing of it for all others.

The NATS client imports aiohttp whenever it is installed: a third of a second and ten megabytes in every process, for a
transport that few use. So the client is loaded as if aiohttp were not there, and gets it when a server's address asks for it.
"""

import importlib
import sys
from collections.abc import Iterable
from typing import Final

_AIOHTTP: Final = "aiohttp"


def load_client_without() -> None:
    """Load the NATS client without aiohttp, unless somebody has loaded either already."""
    if _AIOHTTP in sys.modules or "nats" in sys.modules:
        return
    sys.modules[_AIOHTTP] = None  # type: ignore[assignment]  # how Python notes that an import must fail
    try:
        importlib.import_module("nats.aio.transport")
    finally:
        del sys.modules[_AIOHTTP]


def provide(servers: Iterable[str]) -> None:
    """Give the NATS client what it needs for the servers among these that are reached over WebSockets."""
    if any(server.startswith(("ws://", "wss://")) for server in servers):
        transport = importlib.import_module("nats.aio.transport")
        for module in (_AIOHTTP, "multidict"):
            setattr(transport, module, importlib.import_module(module))
