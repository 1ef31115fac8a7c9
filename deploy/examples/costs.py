"""Sums up the GPU time that each namespace has held, from all decisions on the bus.

Run: ``python -m deploy.examples.costs --nats nats://127.0.0.1:4222 --price 2.5``
"""

import argparse
import asyncio
from collections import Counter
from datetime import datetime

from bus.connection import Bus
from bus.streams import DECISION, stream_info
from bus.subscribe import subscribe
from schemas.decision import Decision


class Costs:
    """GPU seconds by namespace. A part of a GPU counts as one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._since: dict[str, tuple[str, int, datetime]] = {}

    def add(self, decision: Decision, at: datetime) -> None:
        """Take in the next decision."""
        begun = self._since.pop(decision.pod_uid, None)
        if begun is not None:
            namespace, gpus, since = begun
            self.seconds[namespace] += round(gpus * (at - since).total_seconds())
        if decision.outcome == "allocated":
            self._since[decision.pod_uid] = decision.namespace, len(decision.gpus), at

    def finish(self, at: datetime) -> None:
        """Count what still runs, up to an instant."""
        for namespace, gpus, since in self._since.values():
            self.seconds[namespace] += round(gpus * (at - since).total_seconds())
        self._since.clear()


async def report(bus: Bus) -> Costs:
    """Return the costs up to the newest decision."""
    costs, last = Costs(), (await stream_info(bus, DECISION)).state.last_seq
    if not last:
        return costs
    async for received in subscribe(bus, Decision, after=0):
        costs.add(received.data, received.stored_at)
        if received.seq >= last:
            costs.finish(received.stored_at)
            break
    return costs


async def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222")
    parser.add_argument("--price", type=float, default=1.0, help="of one GPU hour")
    options = parser.parse_args()
    async with await Bus.connect(options.nats, name="costs") as bus:
        costs = await report(bus)
    for namespace, seconds in costs.seconds.most_common():
        print(f"{namespace}\t{seconds / 3600:.2f} GPU hours\t{seconds / 3600 * options.price:.2f}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
