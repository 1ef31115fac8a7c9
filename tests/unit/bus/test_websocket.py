"""Processes that speak plain NATS load no HTTP client."""

import subprocess
import sys

CHECK = """
import sys
import bus.connection
import nats.aio.transport as transport
from bus.websocket import provide
assert "aiohttp" not in sys.modules
provide(["nats://a:1", "tls://b:2"])
assert "aiohttp" not in sys.modules and transport.aiohttp is None
provide(["nats://a:1", "wss://b:2"])
assert transport.aiohttp.ClientSession and transport.multidict.CIMultiDict
transport.WebSocketTransport
print("fine")
"""


def test_aiohttp_is_loaded_for_websockets_only() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")
