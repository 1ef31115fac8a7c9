"""``gpubus run agent``: the agent of one node."""

import os
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli import agent_options as checked
from deploy.cli.connect import NatsOption, run, servers
from deploy.cli.errors import InputError
from deploy.cli.run import app, check_replicas, run_process

DEFAULT_METRICS_PORT = 9394
"""That of HAMi's monitor."""


@app.command("agent")
def agent(
    *,
    nats: NatsOption = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Name of the node. [env: NODE_NAME] [default: the host's name]")
    ] = None,
    gpus: Annotated[
        str,
        typer.Option("--gpus", help="nvml, or GPUs that do not exist: simulated:8xA100-80G, simulated:FILE.json."),
    ] = "nvml",
    every: Annotated[float, typer.Option("--every", help="Seconds between samples.")] = 1.0,
    heartbeat: Annotated[float, typer.Option("--heartbeat", help="Seconds between inventories.")] = 10.0,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds that one driver call may take.")] = 3.0,
    ignore_xids: Annotated[
        str, typer.Option("--ignore-xids", help="XIDs that say nothing about a GPU, by commas.")
    ] = "13,31,43,45,68,109",
    xid_settle: Annotated[
        float,
        typer.Option("--xid-settle", help="Seconds without an XID until a driver that asks for no reset is believed."),
    ] = 30.0,
    xid_quiet: Annotated[
        float, typer.Option("--xid-quiet", help="The same for a driver that cannot say whether a reset is due.")
    ] = 300.0,
    mode: Annotated[str, typer.Option("--mode", help="How GPUs are shared: hami-core or mps.")] = "hami-core",
    slots: Annotated[int, typer.Option("--slots", help="Most containers on one GPU; 0 for no limit.")] = 0,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="FILE", help='JSON with the FP16 TFLOPS of models: {"NVIDIA X": "123.4"}.'),
    ] = None,
    host: Annotated[
        Path, typer.Option("--host", metavar="DIR", help="Where the host's /proc, /sys and /var are.")
    ] = Path("/"),
    kubelet: Annotated[
        str, typer.Option("--kubelet", metavar="SOCKET", help="The kubelet's PodResources socket; empty asks nobody.")
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock",
    workers: Annotated[
        Path | None,
        typer.Option(
            "--workers", metavar="DIR", help="Lay out directories for limiters there, such as /usr/local/vgpu."
        ),
    ] = None,
    metrics: Annotated[
        int, typer.Option("--metrics", min=-1, max=65_535, help="Port of /metrics; -1 serves none.")
    ] = DEFAULT_METRICS_PORT,
    replicas: Annotated[
        int,
        typer.Option("--replicas", help="Copies of streams that it has to create: 1 or 3; 0 leaves them to others."),
    ] = 1,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
) -> None:
    """Say what GPUs this node has, how they are and who uses them, until SIGTERM.

    \b
    Examples:
      gpubus run agent --nats nats://nats.gpubus.svc:4222
      gpubus run agent --node demo --gpus simulated:8xA100-80G
    """
    from deploy.local.roles import unique_name

    if replicas:  # an agent that may not touch streams waits until somebody has made them
        check_replicas(replicas)
    if mode not in ("hami-core", "mps"):
        raise InputError(
            f"--mode is {mode!r}: use hami-core or mps; GPUs that are cut into MIG devices say so themselves"
        )
    options = checked.options(
        node=node or os.environ.get("NODE_NAME") or socket.gethostname(),
        gpus=gpus,
        every_s=every,
        heartbeat_s=heartbeat,
        deadline_s=deadline,
        ignored_xids=checked.xids(ignore_xids),
        xid_settle_s=xid_settle,
        xid_quiet_s=xid_quiet,
        mode=mode,
        slots=slots,
        tflops_milli=checked.models(models),
        proc=str(host / "proc"),
        sysfs=str(host / "sys"),
        logs=str(host / "var" / "log" / "containers"),
        pod_resources=kubelet or None,
        workers=None if workers is None else str(workers),
        metrics_port=None if metrics < 0 else metrics,
    )

    async def play(bus: Any, name: str, stop: Any, ready: Any) -> None:
        from producers.agent.service import Agent

        del name  # the node is its name
        await Agent(bus, options).run(stop, ready=ready)

    name = unique_name("agent", f"agent-{options.node}")
    run(run_process(play, name, servers(nats), replicas, exit_with_stdin=exit_with_stdin))
