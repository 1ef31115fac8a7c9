"""``gpubus run watcher``, ``binder``, ``status`` and the other roles that speak to a Kubernetes cluster."""

import os
from pathlib import Path
from typing import Annotated, Final

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


_EXAMPLE: Final = "\b\nExample: gpubus run {role} --nats nats://nats.gpubus.svc:4222 --kubeconfig ~/.kube/config"
_PURPOSES: Final = {
    "watcher": "Say on the bus what the API server says, until SIGTERM; ready once the view is complete.",
    "binder": "Carry decisions out in the API server, until SIGTERM.",
    "actuator": "Replace agents, workers and clients for the updater, and evict pods for others, until SIGTERM.",
    "workload": "Keep as many workers of each TensorFusionWorkload as it wants, until SIGTERM.",
    "scaler": "Keep pools at their size (GPUBUS_OFFERS), and advise workloads what to ask for (GPUBUS_METRICS), until SIGTERM.",
    "status": "Write the state of nodes, GPUs and pools back to their custom resources, until SIGTERM.",
    "tainter": "Have nodes say that pods hold GPUs of ours there (progressive migration), until SIGTERM.",
    "reconciler": "Compare the ledger with the API server every minute, and repair what is provably safe, until SIGTERM.",
}


def _add(role: str, purpose: str) -> None:
    """Give a role a command of its own; all of them take the same options."""

    @app.command(role, help=f"{purpose}\n\n{_EXAMPLE.format(role=role)}")
    def command(
        *,
        nats: NatsOption = None,
        kubeconfig: KubeconfigOption = None,
        name: NameOption = None,
        replicas: ReplicasOption = 1,
        metrics: MetricsPortOption = -1,
        exit_with_stdin: StdinOption = False,
    ) -> None:
        from deploy.local.roles import CLUSTER_ROLES, COEXISTING_ROLES, unique_name

        check_replicas(replicas)
        if kubeconfig is not None:
            os.environ["KUBECONFIG"] = str(kubeconfig)
        process = run_process(
            (CLUSTER_ROLES | COEXISTING_ROLES)[role],
            unique_name(role, name),
            servers(nats),
            replicas,
            exit_with_stdin=exit_with_stdin,
            metrics=metrics,
        )
        run(process)


for _role, _purpose in _PURPOSES.items():
    _add(_role, _purpose)
