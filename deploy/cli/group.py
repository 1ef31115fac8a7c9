"""``gpubus run group``: several roles in one process, as a pod of a deployment holds them."""

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.cluster import KubeconfigOption, NameOption, ReplicasOption, StdinOption
from deploy.cli.connect import NatsOption, run, servers
from deploy.cli.errors import InputError
from deploy.cli.run import MetricsPortOption, app, check_replicas, run_process

if TYPE_CHECKING:
    from deploy.local.roles import Role


@app.command("group")
def group(
    roles: Annotated[str, typer.Argument(metavar="ROLES", help="Roles with commas, such as watcher,binder,updater.")],
    *,
    nats: NatsOption = None,
    kubeconfig: KubeconfigOption = None,
    name: NameOption = None,
    replicas: ReplicasOption = 1,
    metrics: MetricsPortOption = -1,
    exit_with_stdin: StdinOption = False,
) -> None:
    """Run several roles in one process over one connection, until SIGTERM; the end of one is the end of all.

    The gateway and the mutator run by themselves: what they answer must not wait for what others do.

    \b
    Example: gpubus run group watcher,binder,updater --nats nats://nats.gpubus.svc:4222
    """
    from deploy.local.roles import unique_name

    check_replicas(replicas)
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    plays = _plays(roles)
    given = name

    async def play(bus: Any, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
        del name  # each role has one of its own
        await _play_all(plays, bus, given, stop, ready)

    process = run_process(
        play,
        unique_name("group", name),
        servers(nats),
        replicas,
        exit_with_stdin=exit_with_stdin,
        metrics=metrics,
    )
    run(process)


def _plays(roles: str) -> "dict[str, Role]":
    from deploy.local.callout import GUARD_ROLES
    from deploy.local.roles import ASKED_ROLES, CLUSTER_ROLES, COEXISTING_ROLES, METRICS_ROLES, ROLES

    plain = {**ROLES, **ASKED_ROLES, **METRICS_ROLES, **CLUSTER_ROLES, **COEXISTING_ROLES, **GUARD_ROLES}
    names = [role.strip() for role in roles.split(",") if role.strip()]
    if not names:
        raise InputError("no roles are named: write them with commas, such as watcher,binder")
    for role in names:
        if role not in plain:
            raise InputError(f"role {role!r} is unknown in a group: choose from {', '.join(plain)}")
        if names.count(role) > 1:
            raise InputError(f"role {role!r} is named twice: run another process for a second one")
    return {role: plain[role] for role in names}


async def _play_all(
    plays: "dict[str, Role]", bus: Any, name: str | None, stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Play all of them; ready once all are. The first that ends stops the others, and its error is the group's."""
    from bus.tasks import end
    from deploy.local.roles import unique_name

    readies = {role: asyncio.Event() for role in plays}

    async def one(role: str) -> None:
        try:
            await plays[role](bus, unique_name(role, f"{name}-{role}" if name else None), stop, readies[role])
        finally:
            stop.set()  # half of a control plane would only mislead

    async def all_ready() -> None:
        for event in readies.values():
            await event.wait()
        ready.set()

    tasks = [asyncio.create_task(one(role), name=role) for role in plays]
    announcing = asyncio.create_task(all_ready())
    try:
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
    finally:
        await end(announcing, *tasks)
