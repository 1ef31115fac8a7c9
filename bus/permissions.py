"""Who may say and hear what on the bus: the one table that the chart's ``nats.conf`` and the grants of agents are made from.

Roles of the control plane may read every stream, for all of them keep a view of it; what a role may write is what it is the
author of. An agent may write what its own node is, and read the ledger record of its own node; streams and consumers it cannot
touch.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from bus.subjects import ledger_node, state, token, usage_gpu

ACCOUNT: Final = "GPUBUS"
ADMIN: Final = "admin"
AGENT_USER: Final = "agent"

_READ: Final = (
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.INFO.>",
    "$JS.API.CONSUMER.MSG.NEXT.>",
    "$JS.ACK.>",
    "$JS.FC.>",
)
_SHARED: Final = (*_READ, "$JS.API.STREAM.CREATE.*", "gpubus.dead.>")
"""Whoever starts first makes the streams that are missing. Allocators add to most of them what a new version speaks on;
nobody but an administrator deletes one.
"""

_GROWING: Final = ("STATE", "WORK", "TICK", "CAPACITY", "USAGE", "ALERT", "SHADOW")
"""Streams that a new version may speak more on. Those that auditors read are not among them."""

_SCHEDULE, _RELEASE, _EVICT = "gpubus.work.schedule.>", "gpubus.work.release.>", "gpubus.work.evict.>"


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects, with wildcards."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


ROLES: Final[dict[str, Grants]] = {
    "watcher": Grants(
        publish=(
            *(
                f"gpubus.state.{kind}.>"
                for kind in (
                    "pool",
                    "node",
                    "pod",
                    "quota",
                    "config",
                    "component",
                    "member",
                    "disruption",
                    "namespace",
                    "client",
                    "connection",
                )
            ),
            "gpubus.decision.>",
            _SCHEDULE,
            _RELEASE,
        ),
        subscribe=("gpubus.rpc.maker",),
    ),
    "allocator": Grants(
        publish=(
            "gpubus.ledger.node.*",
            "gpubus.ledger.quota.*",
            "gpubus.ledger.gang.*",
            "gpubus.decision.>",
            "gpubus.journal.*",
            *(f"$JS.API.STREAM.UPDATE.{stream}" for stream in _GROWING),
            "gpubus.state.allocator.*",
            "gpubus.state.expected.*",
            "gpubus.state.waiting.>",
            "gpubus.timer.sweep.*",
            "gpubus.timer.gang.*",
            "gpubus.rpc.extender.offered",
            _SCHEDULE,
            _EVICT,
        ),
        subscribe=(
            *(f"gpubus.rpc.extender.{verb}" for verb in ("filter", "prioritize", "bind", "offered")),
            "gpubus.rpc.resize",
        ),
    ),
    "inspector": Grants(publish=("gpubus.rpc.mutate.understand",), subscribe=("gpubus.rpc.inspect",)),
    "mutator": Grants(
        publish=("gpubus.ledger.workload.>", "gpubus.ledger.ports.*", "gpubus.rpc.maker"),
        subscribe=("gpubus.rpc.mutate", "gpubus.rpc.mutate.ready", "gpubus.rpc.mutate.understand"),
    ),
    "gateway": Grants(
        publish=(
            "gpubus.rpc.mutate",
            "gpubus.rpc.mutate.ready",
            "gpubus.rpc.inspect",
            *(f"gpubus.rpc.extender.{verb}" for verb in ("filter", "prioritize", "bind")),
        ),
        subscribe=("gpubus.rpc.extender.bound.*",),
    ),
    "binder": Grants(publish=(_RELEASE, "gpubus.rpc.extender.bound.*")),
    "updater": Grants(
        publish=(
            "gpubus.ledger.rollout.>",
            "gpubus.timer.rollout.>",
            "gpubus.rpc.rollout.replace",
            "gpubus.rpc.rollout.ask",
            "gpubus.rpc.rollout.wanted",
        )
    ),
    "actuator": Grants(
        publish=("gpubus.notice.>",),
        subscribe=("gpubus.rpc.rollout.replace", "gpubus.rpc.rollout.ask", "gpubus.rpc.rollout.wanted"),
    ),
    "workload": Grants(publish=("gpubus.ledger.seats.>", "gpubus.rpc.maker")),
    "status": Grants(publish=("gpubus.state.status.*",)),
    "reconciler": Grants(publish=("gpubus.drift.*", "gpubus.timer.reconcile.*", _SCHEDULE, _RELEASE)),
    "recorder": Grants(publish=("gpubus.state.recorder.*", "gpubus.timer.record.*")),
    "alerter": Grants(
        publish=(
            "gpubus.state.rules.*",
            "gpubus.state.alert.*",
            "gpubus.alert.*",
            "gpubus.timer.alert.*",
            "$JS.API.STREAM.PURGE.TICK",
        ),
        subscribe=("gpubus.rpc.alerts.backtest",),
    ),
    "notifier": Grants(),
    "scaler": Grants(
        publish=(
            "gpubus.state.use.>",
            "gpubus.state.capacity.*",
            "gpubus.state.defrag.*",
            "gpubus.capacity.*",
            "gpubus.rpc.inspect",
            "gpubus.rpc.resize",
            "gpubus.timer.scaling.>",
            "gpubus.timer.capacity.*",
            "$JS.API.STREAM.PURGE.TICK",
        )
    ),
    "tainter": Grants(),
    "authenticator": Grants(subscribe=("$SYS.REQ.USER.AUTH",)),
}


def inbox(user: str) -> str:
    """Return the first tokens of the subjects on which a user is answered: nobody else may listen there."""
    return f"_INBOX.{token(user)}"


def of_roles(user: str, roles: Iterable[str]) -> Grants:
    """Return what a process may that plays ``roles`` over one connection.

    Raises:
        KeyError: One is no role of the control plane.
    """
    own = f"{inbox(user)}.>"
    given = [ROLES[role] for role in roles]
    publish = (own, *_SHARED, *(subject for grants in given for subject in grants.publish))
    subscribe = (own, *(subject for grants in given for subject in grants.subscribe))
    return Grants(publish=tuple(dict.fromkeys(publish)), subscribe=tuple(dict.fromkeys(subscribe)))


def agent_user(node: str) -> str:
    """Return the name under which the agent of a node logs in."""
    return f"{AGENT_USER}/{node}"


def of_agent(node: str) -> Grants:
    """Return what the agent of ``node`` may: say what its own node is, and read who holds what there.

    It reads the newest message of a subject, and no stream as a whole. Of pods it may read all, for what they ask for: their
    namespaces are not known before one is placed on the node.
    """
    own = f"{inbox(agent_user(node))}.>"
    gpus, record, name = state("gpu", node), ledger_node(node), token(node)
    return Grants(
        publish=(
            own,
            gpus,
            usage_gpu(node),
            f"gpubus.drift.{name}",
            f"gpubus.notice.*.*.{name}",
            f"$JS.API.DIRECT.GET.STATE.{gpus}",
            f"$JS.API.DIRECT.GET.USAGE.{usage_gpu(node)}",
            "$JS.API.DIRECT.GET.STATE.gpubus.state.pod.*.*",
            f"$JS.API.DIRECT.GET.LEDGER.{record}",
        ),
        subscribe=(own, record),
    )
