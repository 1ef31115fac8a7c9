"""Files of the Helm chart that the code knows better: what the API server sends us and guards, and what kube-scheduler asks.

Templates put names and addresses in; what is in the files is what ``gpubus schema webhook``, ``guard`` and ``scheduler`` print.
"""

import yaml

from bus import permissions as permissions_table
from producers.gateway.configuration import HAMI, NATIVE, Reach, condition, webhook_configuration
from producers.gateway.guard import WRITERS, guard
from producers.gateway.scheduler import scheduler_configuration
from schemas.dialects.tensorfusion import PLACEHOLDER_CLASS, PLACEHOLDER_PRIORITY, PRIORITIES, PRIORITY_CLASSES

_HEAD = "# Made by `gpubus schema chart --out deploy/chart/files`: change the code instead.\n"


def chart_files() -> dict[str, str]:
    """Return the text of each file by its name."""
    reach = Reach(resources=HAMI, excluded_namespaces=("kube-system",))
    hook = webhook_configuration("webhook", ca_bundle=b"", service=("namespace", "webhook"), reach=reach)
    webhook = {
        "webhooks": hook["webhooks"],
        # Where pods with native limits of every vendor come to us too.
        "native": condition(tuple(dict.fromkeys((*HAMI, *NATIVE)))),
        # Where the native device plugin gives out GPUs beside us: pods that opt out come too, to be kept to nodes of their own.
        "beside": condition(tuple(dict.fromkeys((*HAMI, *NATIVE))), NATIVE),
    }
    scheduler = scheduler_configuration("gpubus-extender", ca_bundle=b"", url="https://webhook", lease="namespace")
    policy, binding = guard("guard", ["account"])
    guarded = {"policy": policy["spec"], "binding": binding["spec"], "writers": list(WRITERS)}
    permissions = {
        "account": permissions_table.ACCOUNT,
        "shared": list(permissions_table.of_roles("USER", ()).publish[1:]),
        "roles": {
            role: {"publish": list(grants.publish), "subscribe": list(grants.subscribe)}
            for role, grants in permissions_table.ROLES.items()
        },
    }
    return {
        "priority-classes.yaml": _HEAD + _text({"classes": priority_classes()}),
        "bus-permissions.yaml": _HEAD + _text(permissions),
        "webhook.yaml": _HEAD + _text(webhook),
        "guard.yaml": _HEAD + _text(guarded),
        "kube-scheduler.yaml": _HEAD + _text(scheduler),
    }


def priority_classes() -> list[dict[str, str | int]]:
    """Return the priority classes that we write on pods: admission by QoS, and the scaler on what keeps a warm reserve."""
    classes: list[dict[str, str | int]] = [
        {"name": name, "value": PRIORITIES.get(qos, 0), "description": f"Pods with GPUs of {qos} QoS"}
        for qos, name in PRIORITY_CLASSES.items()
    ]
    kept = "Pods that keep the warm reserve of a pool of GPUs and give way to all others"
    return [
        *classes,
        {"name": PLACEHOLDER_CLASS, "value": PLACEHOLDER_PRIORITY, "description": kept, "preemptionPolicy": "Never"},
    ]


def _text(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=120)
    return text
