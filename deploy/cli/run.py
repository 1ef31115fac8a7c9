"""``gpubus run ROLE``: one process of a production deployment. ``gpubus up``: all of them in one, for a laptop."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deploy.cli.connect import NatsOption, run, security, servers
from deploy.cli.errors import InputError
from deploy.cli.output import warn

if TYPE_CHECKING:
    from bus.connection import Bus
    from deploy.local.roles import Role
    from deploy.local.server import LocalBus

COLLECT_AFTER = (50_000, 20, 50)
"""Garbage collection of roles: most of what they make lives as long as the cluster, or is gone at once."""

SILENT_S = 3.0
"""How long a role waits for the bus without a word."""

MOST_NODES = 100_000
MOST_PODS = 10_000_000
MOST_RATE = 1_000_000
MOST_ALLOCATORS = 64

MetricsPortOption = Annotated[
    int,
    typer.Option(
        "--metrics",
        min=-1,
        max=65_535,
        help="Port of /metrics, /healthz and /readyz, 0 for a free one; -1 serves none.",
    ),
]
ReplicasOption = Annotated[int, typer.Option("--replicas", help="Copies of every stream: 1 or 3.")]


class Roles(TyperGroup):
    """``gpubus run``: a role that has options of its own is a command here, every other is the argument of :func:`role`."""

    ANY = "role"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand what names no command of its own to the command for any role."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else [self.ANY, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command; that for any role has no name to be shown."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == self.ANY else name, command, rest


app = typer.Typer(cls=Roles, help="Run one role until SIGTERM.")


@app.command(Roles.ANY, hidden=True)
def role(
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="Which part to play; an unknown one lists them all.",
        ),
    ],
    *,
    nats: NatsOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name in logs and decisions; a unique ending is added.")
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", help="Copies of streams that it has to create: 1 or 3.")] = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
) -> None:
    """Run one role until SIGTERM; any number of processes may run the same.

    \b
    Example: gpubus run allocator --nats nats://nats.gpubus.svc:4222
    Others have options of their own: gpubus run agent --help
    \b
    Towards a bus with TLS or passwords: GPUBUS_NATS_CA, GPUBUS_NATS_CERTIFICATE and GPUBUS_NATS_KEY name PEM files,
    GPUBUS_NATS_USER and GPUBUS_NATS_PASSWORD_FILE who to log in as. All are read again when the connection was lost.
    \b
    GPUBUS_METRICS says where the recorder and the alerter keep metrics: duckdb:FILE or greptime://HOST:4000/DATABASE,
    GPUBUS_ALERT_RULES names the alerter's file of rules, GPUBUS_ALERTMANAGER the notifier's addresses.
    """
    from deploy.local.roles import ASKED_ROLES, CLUSTER_ROLES, COEXISTING_ROLES, METRICS_ROLES, ROLES, unique_name

    plays = {**ROLES, **METRICS_ROLES, **ASKED_ROLES}
    if role not in plays:
        known = (*plays, "agent", "gateway", "mutator", *CLUSTER_ROLES, *COEXISTING_ROLES)
        raise InputError(f"role {role!r} is unknown: choose one of {', '.join(known)}")
    check_replicas(replicas)
    process = run_process(
        plays[role], unique_name(role, name), servers(nats), replicas, exit_with_stdin=exit_with_stdin, metrics=metrics
    )
    run(process)


def check_replicas(replicas: int) -> None:
    """Check that streams can have so many copies.

    Raises:
        InputError: They cannot.
    """
    if replicas not in (1, 3):
        raise InputError(f"--replicas is {replicas}: use 1 or 3")


def check_size(option: str, value: float, least: float, most: float) -> None:
    """Check that a number is within bounds that one machine can simulate.

    Raises:
        InputError: It is not, or is no number at all.
    """
    if not least <= value <= most:  # also false for NaN
        raise InputError(f"{option} is {value:g}: use a number from {least:g} to {most:g}")


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run_process(
    play: "Role", name: str, urls: list[str], replicas: int, *, exit_with_stdin: bool, metrics: int = -1
) -> None:
    """Play one role until a signal ends it, and serve its metrics at the port ``metrics`` unless that is negative.

    Streams that are missing are made with so many ``replicas``; with 0 that is left to others.
    """
    from bus.connection import Bus
    from bus.streams import StreamLimits, ensure_streams
    from bus.tasks import end
    from deploy.local.exposition import served

    stop, ready = stop_on_signals(), asyncio.Event()
    if exit_with_stdin:
        asyncio.get_running_loop().add_reader(sys.stdin, _on_stdin_closed, stop)
    connecting = asyncio.create_task(Bus.connect(urls, name=name, timeout=30.0, security=security()))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([connecting, stopped], return_when=asyncio.FIRST_COMPLETED, timeout=SILENT_S)
    if not connecting.done() and not stopped.done():
        warn(f"no NATS server answers at {', '.join(urls)} yet: start one, or name another with --nats")
        await asyncio.wait([connecting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():
        await end(connecting)
        return
    async with await connecting as bus:
        if replicas:
            await ensure_streams(bus, StreamLimits(replicas=replicas), update=False)
        announcing = asyncio.create_task(_announce(ready, f"ready {name}"))
        try:
            async with served(bus, metrics, ready):
                await play(bus, name, stop, ready)
        finally:
            announcing.cancel()


def _on_stdin_closed(stop: asyncio.Event) -> None:
    """Whoever started us is gone."""
    asyncio.get_running_loop().remove_reader(sys.stdin)
    stop.set()


async def _announce(ready: asyncio.Event, line: str) -> None:
    await ready.wait()
    # A full collection walks everything the role has loaded, for tens of milliseconds: take that out of its sight.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def up(
    *,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Where the embedded bus keeps its files.")
    ] = Path("gpubus-store"),
    port: Annotated[int, typer.Option("--port", help="Port of the embedded bus; 0 takes a free one.")] = 4222,
    replicas: ReplicasOption = 1,
    nodes: Annotated[int, typer.Option("--nodes", help="Simulate a cluster of so many nodes; 0 simulates none.")] = 0,
    pods: Annotated[int, typer.Option("--pods", help="Pods that come to the simulated cluster.")] = 1000,
    rate: Annotated[float, typer.Option("--rate", help="Simulated pods per second.")] = 20.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulation.")] = 1,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", metavar="PATH", help="Share the GPUs of this cluster, with all its roles but admission."
        ),
    ] = None,
) -> None:
    """Run every role in this process, on an embedded bus, until Ctrl-C.

    \b
    Example: gpubus up --nodes 100
    Then, in another terminal: gpubus events
    To try it on a cluster: gpubus schema crds | kubectl apply -f -; gpubus up --kubeconfig ~/.kube/config
    """
    if kubeconfig is not None:
        if nodes:
            raise InputError("--nodes simulates a cluster and --kubeconfig names one: keep one of them")
        os.environ["KUBECONFIG"] = str(kubeconfig)
    check_replicas(replicas)
    check_size("--nodes", nodes, 0, MOST_NODES)
    check_size("--pods", pods, 0, MOST_PODS)
    check_size("--rate", rate, 0.001, MOST_RATE)
    check_size("--port", port, 0, 65_535)
    run(_up(store, port, replicas, simulate=(nodes, pods, rate, seed), cluster=kubeconfig is not None))


async def _up(store: Path, port: int, replicas: int, *, simulate: tuple[int, int, float, int], cluster: bool) -> None:
    from bus.connection import Bus
    from bus.streams import StreamLimits, ensure_streams
    from bus.tasks import end
    from deploy.local.monitoring import ALERTMANAGER, METRICS
    from deploy.local.roles import CLUSTER_ROLES, METRICS_ROLES, ROLES, unique_name
    from deploy.local.server import LocalBus, LocalBusError

    stop = stop_on_signals()
    os.environ.setdefault(METRICS, f"duckdb:{store / 'metrics.duckdb'}")
    plays = ROLES | METRICS_ROLES | (CLUSTER_ROLES if cluster else {})
    if not os.environ.get(ALERTMANAGER):
        plays = {role: play for role, play in plays.items() if role != "notifier"}
    async with (
        LocalBus(store, replicas=replicas, port=port) as local,
        await Bus.connect(local.urls, name="gpubus-up") as bus,
    ):
        await ensure_streams(bus, StreamLimits(replicas=replicas))
        ready = {role: asyncio.Event() for role in plays}
        tasks = [
            asyncio.create_task(_ended(play(bus, unique_name(role), stop, ready[role]), stop))
            for role, play in plays.items()
        ]
        all_ready = asyncio.create_task(_all(ready.values()))
        await asyncio.wait([all_ready, *tasks], timeout=30.0, return_when=asyncio.FIRST_COMPLETED)
        await end(all_ready)
        if stop.is_set():
            await asyncio.gather(*tasks)  # one role has failed, and says why
            return
        print(f"gpubus is up at {','.join(local.urls)} with {', '.join(plays)}; Ctrl-C stops it", flush=True)
        if simulate[0]:
            tasks.append(asyncio.create_task(_ended(_simulate(bus, simulate, stop), stop)))
        watching = asyncio.create_task(_watch(local, stop))
        await asyncio.gather(*tasks)
        watching.cancel()
        if local.dead:
            raise LocalBusError(f"nats-server ended by itself; see nats.log in {store}")


async def _all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _watch(local: "LocalBus", stop: asyncio.Event) -> None:
    """The end of the embedded bus is the end of all."""
    while not local.dead:  # noqa: ASYNC110  a process tells nobody that it has ended
        await asyncio.sleep(0.5)
    stop.set()


async def _ended(work: Awaitable[None], stop: asyncio.Event) -> None:
    """One role's end is the end of all: a half of a control plane would only mislead."""
    try:
        await work
    finally:
        stop.set()


async def _simulate(bus: "Bus", size: tuple[int, int, float, int], stop: asyncio.Event) -> None:
    from producers.simulator.generator import generate
    from producers.simulator.service import Simulator
    from schemas.cluster import Pool

    nodes, pods, rate, seed = size
    await Simulator(bus, generate(nodes, pods, seed), pool=Pool(name="demo"), rate=rate, seed=seed).run(stop)
