"""Writes all decisions of a namespace, or of all, as CSV to standard output, and stops at the newest.

Run: ``python -m deploy.examples.csv_export --nats nats://127.0.0.1:4222 --namespace ml > decisions.csv``
"""

import argparse
import asyncio
import csv
import sys
from typing import TextIO

from bus.connection import Bus
from bus.streams import DECISION, stream_info
from bus.subscribe import subscribe
from schemas.decision import Decision

COLUMNS = ("sequence", "time", "outcome", "namespace", "pod", "pool", "node", "gpus", "reason", "allocator")


async def export(bus: Bus, file: TextIO, namespace: str | None) -> None:
    """Write the table."""
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    last = (await stream_info(bus, DECISION)).state.last_seq
    if not last:
        return
    async for received in subscribe(bus, Decision, after=0):
        found = received.data
        if namespace in (None, found.namespace):
            gpus = " ".join(gpu.uuid for gpu in found.gpus)
            place = (found.namespace, found.name, found.pool, found.node, gpus)
            writer.writerow(
                (received.seq, received.stored_at.isoformat(), found.outcome, *place, found.reason, found.allocator)
            )
        if received.seq >= last:
            return


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222")
    parser.add_argument("--namespace")
    options = parser.parse_args()
    async with await Bus.connect(options.nats, name="csv-export") as bus:
        await export(bus, sys.stdout, options.namespace)


if __name__ == "__main__":
    asyncio.run(main())
