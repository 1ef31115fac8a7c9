"""The roles a gpubus process can play, by name: what ``gpubus run ROLE`` and ``gpubus up`` start."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from bus.connection import Bus
from deploy.local.exposition import exposed

if TYPE_CHECKING:
    from bus.exposition import Family
    from bus.kube.client import Client

log = logging.getLogger("gpubus.roles")

Role = Callable[[Bus, str, asyncio.Event, asyncio.Event], Awaitable[None]]
"""Takes the bus, the process's unique name, the event that stops it, and the event it sets when it is ready."""


async def allocator(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Decide where pods go and commit it to the ledger."""
    from consumers.allocator.service import Allocator

    role = Allocator(bus, name)
    with exposed("allocator", role.statistics):
        await role.run(stop, ready=ready)


async def inspector(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Answer questions about what is allocated and what would fit."""
    from consumers.allocator.inspector.service import Inspector

    del name  # it holds and says nothing of its own
    role = Inspector(bus)
    with exposed("inspector", role.statistics):
        await role.run(stop, ready=ready)


async def updater(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Bring changed components of pools to what runs, batch by batch."""
    from consumers.updater.service import Updater

    role = Updater(bus, name)
    with exposed("updater", role.statistics):
        await role.run(stop, ready=ready)


async def recorder(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Write what is used and allocated to the metrics store."""
    from importlib.metadata import version
    from platform import machine, python_implementation, python_version, system

    from consumers.recorder import hami
    from consumers.recorder.service import Recorder
    from deploy.local.monitoring import metrics_store

    async with metrics_store() as store:
        role = Recorder(bus, name, store)
        build = hami.build_info(
            version("gpubus"), f"{python_implementation()} {python_version()}", f"{system().lower()}/{machine()}"
        )

        def as_hami() -> "tuple[Family, ...]":
            return (build, *hami.families(role.view))

        with exposed("recorder", role.statistics, as_hami, unready=role.unready):
            await role.run(stop, ready=ready)


async def alerter(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Evaluate alert rules over what is recorded."""
    from consumers.alerter.service import Alerter
    from deploy.local.monitoring import metrics_store, rule_source, runbooks

    address = runbooks()
    async with metrics_store() as store, rule_source() as rules:
        role = Alerter(bus, name, store, rules=rules, runbooks=address)
        with exposed("alerter", role.statistics):
            await role.run(stop, ready=ready)


async def notifier(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Bring alerts to Alertmanager."""
    from consumers.notifier.service import Notifier
    from deploy.local.monitoring import alertmanagers

    role = Notifier(bus, name, alertmanagers())
    with exposed("notifier", role.statistics):
        await role.run(stop, ready=ready)


async def watcher(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Say on the bus what the API server says."""
    from bus.kube.client import Client
    from deploy.local.settings import preemption, scheduler_config
    from producers.watcher.makers import answering
    from producers.watcher.service import Watcher

    del name  # replicas say the same
    scope, config = preemption(), scheduler_config()
    async with await Client.connect() as client:
        role = Watcher(bus, client, preemption=scope, scheduler_config=config)
        with exposed("watcher", role.statistics, unready=role.unready):
            async with answering(bus, client):
                await role.run(stop, ready=ready)


async def binder(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Carry decisions out in the API server."""
    from bus.kube.client import Client
    from consumers.binder.service import Binder

    async with await Client.connect() as client:
        role = Binder(bus, client, name)
        with exposed("binder", role.statistics):
            await role.run(stop, ready=ready)


async def actuator(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Replace members of rollouts in the API server, and evict pods that others go before."""
    from bus.kube.client import Client
    from consumers.evictor.service import Evictor
    from consumers.updater.actuator import NAMESPACE, Actuator

    namespace = os.environ.get("GPUBUS_NAMESPACE") or NAMESPACE

    async with await Client.connect() as client:
        evictor = Evictor(bus, client, name)
        with exposed("evictor", evictor.statistics):
            async with asyncio.TaskGroup() as both:
                both.create_task(Actuator(bus, client, name, namespace=namespace).run(stop, ready=ready))
                both.create_task(evictor.run(stop))


async def workload(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Keep as many workers of each workload as it wants."""
    from bus.kube.client import Client
    from consumers.workload.service import WorkloadKeeper

    async with await Client.connect() as client:
        role = WorkloadKeeper(bus, client, name)
        with exposed("workload", role.statistics):
            await role.run(stop, ready=ready)


async def scaler(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Keep pools at their size, and advise workloads what to ask for, by what they use."""
    from bus.kube.client import Client
    from bus.tasks import end
    from consumers.scaler.exposition import families
    from consumers.scaler.reserve import NAMESPACE
    from consumers.scaler.sizer import Sizer
    from deploy.local.monitoring import PLACEHOLDER_IMAGE, node_offers

    async with await Client.connect() as client:
        namespace, image = os.environ.get("GPUBUS_NAMESPACE") or NAMESPACE, os.environ.get(PLACEHOLDER_IMAGE, "")
        sizer = Sizer(bus, client, name, node_offers(), namespace=namespace, image=image)
        with exposed("sizer", sizer.statistics, lambda: families(sizer.pools.recorded.values())):
            both = [
                asyncio.create_task(sizer.run(stop, ready=ready)),
                asyncio.create_task(_advising(bus, client, name, stop)),
            ]
            try:
                done, _ = await asyncio.wait(
                    both, return_when=asyncio.FIRST_EXCEPTION
                )  # each ends by itself when told to
                for task in done:
                    task.result()
            finally:
                await end(*both)


async def _advising(bus: Bus, client: "Client", name: str, stop: asyncio.Event) -> None:
    """Advise workloads as long as there is a metrics store: pools are kept at their size without one."""
    from consumers.metrics.store import StoreUnavailableError
    from consumers.scaler.advisor import Advisor
    from deploy.local.monitoring import METRICS, metrics_store

    if not os.environ.get(METRICS):
        log.warning("%s is not set: workloads are not advised what to ask for", METRICS)
        await stop.wait()
    while not stop.is_set():
        try:
            async with metrics_store() as store:
                role = Advisor(bus, client, name, store)
                with exposed("scaler", role.statistics):
                    await role.run(stop)
        except StoreUnavailableError as error:
            log.warning("workloads are not advised what to ask for: %s; trying again", error)


async def status(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Write the state of nodes, GPUs and pools back to their custom resources."""
    from bus.kube.client import Client
    from consumers.status.service import StatusWriter

    async with await Client.connect() as client:
        role = StatusWriter(bus, client, name)
        with exposed("status", role.statistics):
            await role.run(stop, ready=ready)


async def reconciler(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Compare the ledger with the API server."""
    from bus.kube.client import Client
    from consumers.reconciler.service import Reconciler

    async with await Client.connect() as client:
        role = Reconciler(bus, client, name)
        with exposed("reconciler", role.statistics):
            await role.run(stop, ready=ready)


async def tainter(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Have nodes say whether pods hold GPUs of ours there."""
    from bus.kube.client import Client
    from consumers.tainter.service import Tainter

    async with await Client.connect() as client:
        role = Tainter(bus, client, name)
        with exposed("tainter", lambda: role.statistics):
            await role.run(stop, ready=ready)


ROLES: Final[dict[str, Role]] = {"allocator": allocator, "updater": updater}
"""Roles that need a bus only."""

ASKED_ROLES: Final[dict[str, Role]] = {"inspector": inspector}
"""Roles that need a bus only, and do nothing but answer: there is no use for them where nobody asks."""

METRICS_ROLES: Final[dict[str, Role]] = {"recorder": recorder, "alerter": alerter, "notifier": notifier}
"""Roles that need a metrics store or an Alertmanager too; :mod:`deploy.local.monitoring` says how they are named."""

CLUSTER_ROLES: Final[dict[str, Role]] = {
    "watcher": watcher,
    "binder": binder,
    "status": status,
    "reconciler": reconciler,
    "actuator": actuator,
    "workload": workload,
    "scaler": scaler,
}
"""Roles that need a Kubernetes cluster too, and the scaler a metrics store besides; ``KUBECONFIG`` or the pod's service account
says which cluster.
"""


COEXISTING_ROLES: Final[dict[str, Role]] = {"tainter": tainter}
"""Roles for a cluster in which the native device plugin gives out GPUs too."""


def unique_name(role: str, name: str | None = None) -> str:
    """Return a name that no other process has, nor this one after a restart: transactions and event ids build on it."""
    return f"{name or f'{role}-{socket.gethostname()}-{os.getpid()}'}-{token_hex(3)}"
