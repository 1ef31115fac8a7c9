"""``gpubus run watcher``, ``binder``, ``status`` and the other roles that speak to a Kubernetes cluster."""

import os
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.connect import NatsOption, run, servers
from deploy.cli.run import MetricsPortOption, app, check_replicas, run_process

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="PATH", help="Which cluster. [default: KUBECONFIG, or that of the pod we run in]"
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Name in logs and events; a unique ending is added.")]
ReplicasOption = Annotated[int, typer.Option("--replicas", help="Copies of streams that it has to create: 1 or 3.")]
StdinOption = Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)]


@app.command("watcher")
def watcher(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Say on the bus what the API server says, until SIGTERM; ready once the view is complete.

    \b
    Example: gpubus run watcher --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("watcher", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


@app.command("binder")
def binder(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Carry decisions out in the API server, until SIGTERM.

    \b
    Example: gpubus run binder --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("binder", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


@app.command("actuator")
def actuator(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Replace agents, workers and clients in the API server when the updater asks for it, until SIGTERM.

    \b
    Example: gpubus run actuator --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("actuator", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


@app.command("workload")
def workload(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Keep as many workers of each TensorFusionWorkload as it wants, until SIGTERM.

    \b
    Example: gpubus run workload --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("workload", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


@app.command("status")
def status(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Write the state of nodes, GPUs and pools back to their custom resources, until SIGTERM.

    \b
    Example: gpubus run status --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("status", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


@app.command("reconciler")
def reconciler(
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Compare the ledger with the API server every minute, and repair what is provably safe, until SIGTERM.

    \b
    Example: gpubus run reconciler --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config
    """
    _play("reconciler", nats, kubeconfig, name, replicas, exit_with_stdin=exit_with_stdin, metrics=metrics)


def _play(
    role: str,
    nats: list[str] | None,
    kubeconfig: Path | None,
    name: str | None,
    replicas: int,
    *,
    exit_with_stdin: bool,
    metrics: int = -1,
) -> None:
    from deploy.local.roles import CLUSTER_ROLES, unique_name

    check_replicas(replicas)
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    play = CLUSTER_ROLES[role]
    process = run_process(
        play, unique_name(role, name), servers(nats), replicas, exit_with_stdin=exit_with_stdin, metrics=metrics
    )
    run(process)
