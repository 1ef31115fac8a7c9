"""Run the benchmarks: ``python -m tests.benchmarks [--trace DIR] [--rounds N] [--only PART]``."""

import argparse
from pathlib import Path

import uvloop

from producers.simulator.generator import generate
from producers.simulator.trace import read_trace
from tests.benchmarks import (
    bench_admission,
    bench_agent,
    bench_binding,
    bench_engine,
    bench_metrics,
    bench_replay,
    bench_watcher,
    end_to_end,
    log,
)

ALONE = {
    "agent": bench_agent.report,
    "metrics": bench_metrics.report,
    "admission": bench_admission.report,
    "watcher": bench_watcher.report,
    "binding": bench_binding.report,
}
"""Parts that need no trace."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--trace", type=Path, help="directory with an openb CSV pair; default: a generated cluster")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the throughput rows")
    parser.add_argument(
        "--only",
        choices=["end-to-end", "engine", *ALONE, "replay", "log"],
        help="run one part",
    )
    parser.add_argument("--events", type=int, default=100_000, help="events of the log that is looked back on")
    options = parser.parse_args()
    for name, report in ALONE.items():
        if options.only in (None, name):
            uvloop.run(report())
    if options.only in (None, "replay"):
        uvloop.run(bench_replay.report(options.events))
    if options.only in (*ALONE, "replay"):
        return
    trace = read_trace(options.trace) if options.trace else generate(1213, 8152, seed=1)
    if options.only in (None, "log"):
        uvloop.run(log.report(trace))
    if options.only == "log":
        return
    if options.only != "engine":
        uvloop.run(end_to_end.report(trace, max(options.rounds, 1)))
    if options.only != "end-to-end":
        bench_engine.main(["--trace", str(options.trace)] if options.trace else [])


if __name__ == "__main__":
    main()
