"""What our accounts have done in the API server, by its own audit log, and what the manifests grant them."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.chart.render import CHART, rendered
from tests.integration.plane import SYSTEM

RBAC = CHART.parent / "rbac"
GRANT = re.compile(r'of (?:Cluster)?Role "([^"]+)" to ServiceAccount')
CREATED, REFUSED, FORBIDDEN = 201, 400, 403
RELEASES = ("gpubus", "secured", "tls")
"""What the names of our roles begin with: of the manifests, and of the charts that tests render."""


class Right(NamedTuple):
    """One verb on one resource; ``*`` for any group, and ``*/scale`` for this part of any resource."""

    role: str
    verb: str
    group: str
    resource: str

    def covers(self, other: "Right") -> bool:
        """Whether a right, as granted, allows what was done."""
        plural, _, part = self.resource.partition("/")
        wanted, _, inner = other.resource.partition("/")
        return (
            (self.role, self.verb, part) == (other.role, other.verb, inner)
            and self.group in ("*", other.group)
            and plural in ("*", wanted)
        )


def roles_bound(role: str = "") -> list[dict[str, Any]]:
    """Return the Roles and ClusterRoles that the manifests bind to the account of a role, or to any."""
    accounts = list(yaml.safe_load_all((RBAC / "accounts.yaml").read_text()))
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in accounts
        if "roleRef" in one and (not role or {"gpubus-" + role} & {subject["name"] for subject in one["subjects"]})
    }
    documents = [*yaml.safe_load_all((RBAC / "roles.yaml").read_text()), *accounts]
    return [one for one in documents if (one["kind"], one["metadata"]["name"]) in bound]


def granted() -> set[Right]:
    """Return every right that the manifests grant to roles, and the chart to its issuer."""
    objects, _ = rendered({"bus": {"auth": {"enabled": True}}}, name="tls", namespace=SYSTEM)
    documents = [*roles_bound(), objects["Role", "tls-issuer"], objects["ClusterRole", "tls-issuer"]]
    return {right for one in documents for right in rights_of(one)}


def rights_of(document: dict[str, Any]) -> Iterator[Right]:
    """Yield the rights of one Role or ClusterRole."""
    for rule in document.get("rules", ()):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(role_of(document["metadata"]["name"]), verb, group, resource)


def role_of(name: str) -> str:
    """Return what a role of ours is called without its release; empty for the roles of others."""
    release, _, role = name.partition("-")
    return role if release in RELEASES else ""


def done(log: Path) -> tuple[set[Right], set[str]]:
    """Return what was done by virtue of our roles, and what our accounts were always forbidden, as sentences.

    An API server that has just been started knows of no roles for a moment, and forbids what it then allows.
    Who applies an object that is not there needs the right to create it too. The API server asks for that within the request: it
    was there if the object was made (201), and lacking if the request was refused.
    """
    used: set[Right] = set()
    forbidden: set[str] = set()
    allowed: set[str] = set()
    for event in _events(log):
        reference, annotations = event.get("objectRef", {}), event.get("annotations", {})
        part = reference.get("subresource")
        resource = f"{reference.get('resource')}/{part}" if part else reference.get("resource", "")
        account, verb = event["user"]["username"].rpartition(":")[2], event["verb"]
        code = event.get("responseStatus", {}).get("code", 0)
        if "dryRun=" in event["requestURI"]:
            continue  # a test of rights, and no use of them
        if annotations.get("authorization.k8s.io/decision") == "forbid" or (verb, code) == ("patch", FORBIDDEN):
            forbidden.add(f"{account} may not {verb} {resource}")
            continue
        if code < REFUSED:
            allowed.add(f"{account} may not {verb} {resource}")
        if grant := GRANT.search(annotations.get("authorization.k8s.io/reason", "")):
            right = Right(role_of(grant[1]), verb, reference.get("apiGroup", ""), resource)
            used |= {right, right._replace(verb="create")} if (verb, code) == ("patch", CREATED) else {right}
    return used, forbidden - allowed


def _events(log: Path) -> Iterable[dict[str, Any]]:
    for file in sorted(log.parent.glob(f"{log.stem}*{log.suffix}")):  # a full one is set aside under another name
        with file.open() as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # the last one of a server that was killed may be half a line
                    yield json.loads(line)
