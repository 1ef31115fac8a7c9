"""Posts a line to a chat webhook whenever a pod cannot be placed. The place it has come to is kept in a file.

Run: ``python -m deploy.examples.notifier --nats nats://127.0.0.1:4222 --webhook https://chat.example/hook --state notifier.seq``
"""

import argparse
import asyncio
import json
import urllib.request
from pathlib import Path

from bus.connection import Bus
from bus.subscribe import subscribe
from schemas.decision import Decision


def text_of(decision: Decision) -> str:
    """Return what to say about a refusal."""
    return f"{decision.namespace}/{decision.name} waits for {decision.pool}: {decision.message}. {decision.help}"


def post(webhook: str, text: str) -> None:
    """Post ``{"text": …}``, as Slack and many others take it."""
    request = urllib.request.Request(  # noqa: S310  the operator names the address
        webhook, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310


class Place:
    """The sequence that has been handled last, in a file; None at first, which begins with what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int | None:
        """Return it."""
        return int(self._path.read_text()) if self._path.exists() else None

    def write(self, seq: int) -> None:
        """Note it."""
        self._path.write_text(str(seq))


async def notify(bus: Bus, webhook: str, place: Place) -> None:
    """Say every refusal once, or twice after a crash between the post and the note of it."""
    after = place.read()
    async for received in subscribe(bus, Decision, after=after):
        if received.data.outcome == "unschedulable":
            await asyncio.to_thread(post, webhook, text_of(received.data))
        place.write(received.seq)


async def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222")
    parser.add_argument("--webhook", required=True)
    parser.add_argument("--state", type=Path, default=Path("notifier.seq"))
    options = parser.parse_args()
    async with await Bus.connect(options.nats, name="notifier") as bus:
        await notify(bus, options.webhook, Place(options.state))


if __name__ == "__main__":
    asyncio.run(main())
