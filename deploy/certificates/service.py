"""The issuer's shell: reads the Secrets, writes what has to change, and tells those who do not look again by themselves.

Any number may run at once: what one writes names the version that it has read, and whoever comes second begins anew.
"""

import asyncio
import base64
import hashlib
import json
from datetime import datetime
from typing import Any, Final

import msgspec

from bus.kube.client import JSON, MERGE, STRATEGIC, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from deploy.certificates.renewal import BUNDLE, Data, Wanted, renewed

TRIES: Final = 10
AGAIN_S: Final = 0.5
RESTART: Final = "gpubus.io/certificate"
"""Annotation of pods that read certificates at their start: another value replaces them one by one."""
MANAGED: Final = {"app.kubernetes.io/name": "gpubus", "app.kubernetes.io/component": "issuer"}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Who has to hear of a change.

    Attributes:
        webhook: The MutatingWebhookConfiguration that names the authority, and the Secret that it is in; empty for none.
        restarts: StatefulSets by the Secret that their pods read at the start.
    """

    webhook: tuple[str, str] = ("", "")
    restarts: tuple[tuple[str, str], ...] = ()


async def keep(client: Client, namespace: str, wanted: Wanted, told: Told, now: datetime) -> list[str]:
    """Bring the Secrets to what is wanted and return what was changed, as sentences.

    Raises:
        KubeError: The API server refused, or others wrote all the time.
    """
    for attempt in range(TRIES):
        there, versions = await _read(client, namespace, wanted)
        changed = renewed(there, wanted, now)
        try:
            for name, data in changed.items():
                await _write(client, namespace, name, data, old=there.get(name, {}), version=versions.get(name, ""))
        except KubeRefusedError as error:
            if error.code != CONFLICT or attempt == TRIES - 1:
                raise
            await asyncio.sleep(AGAIN_S)
            continue
        said = [f"Secret {name} is {'changed' if name in there else 'made'}" for name in changed]
        return said + await _tell(client, namespace, told, there | changed)
    raise AssertionError  # the last attempt has raised


async def _read(client: Client, namespace: str, wanted: Wanted) -> tuple[dict[str, Data], dict[str, str]]:
    there: dict[str, Data] = {}
    versions: dict[str, str] = {}
    names = dict.fromkeys([*((wanted.authority,) if wanted.leaves else ()), *wanted.leaves, *wanted.passwords])
    if wanted.callout:
        names[wanted.callout] = None
    for name in names:
        found = await _get(client, resource_path("v1", "secrets", namespace, name))
        if found is not None:
            there[name] = {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
            versions[name] = found["metadata"]["resourceVersion"]
    return there, versions


async def _get(client: Client, path: str) -> dict[str, Any] | None:
    found = await client.find(path)
    return None if found is None else json.loads(found)


async def _write(client: Client, namespace: str, name: str, data: Data, *, old: Data, version: str) -> None:
    encoded: dict[str, Any] = {key: base64.b64encode(value).decode() for key, value in data.items()}
    if not version:
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace, "labels": MANAGED},
            "type": "Opaque",
            "data": encoded,
        }
        path = resource_path("v1", "secrets", namespace)
        await client.call("POST", path, body=json.dumps(document).encode(), content_type=JSON)
        return
    gone = {key: None for key in old if key not in encoded}
    body = {"metadata": {"resourceVersion": version}, "data": gone | encoded}
    path = resource_path("v1", "secrets", namespace, name)
    await client.call("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE)


async def _tell(client: Client, namespace: str, told: Told, now: dict[str, Data]) -> list[str]:
    said = []
    name, secret = told.webhook
    if name:
        path = resource_path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", name=name)
        bundle = base64.b64encode(now[secret][BUNDLE]).decode()
        found = await _get(client, path)  # it is installed after the first run
        hooks = (found or {}).get("webhooks") or []
        behind = [hook["name"] for hook in hooks if hook["clientConfig"].get("caBundle") != bundle]
        if behind:
            body = {"webhooks": [{"name": hook, "clientConfig": {"caBundle": bundle}} for hook in behind]}
            await client.call("PATCH", path, body=json.dumps(body).encode(), content_type=STRATEGIC)
            said.append(f"webhook {name} believes the authority")
    for name, secret in told.restarts:
        digest = hashlib.sha256(b"".join(now[secret][key] for key in sorted(now[secret]))).hexdigest()[:16]
        template = {"metadata": {"annotations": {RESTART: digest}}}
        path = resource_path("apps/v1", "statefulsets", namespace, name)
        restart = {"spec": {"template": template}}
        try:
            answer = json.loads(await client.call("PATCH", path, body=json.dumps(restart).encode(), content_type=MERGE))
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
            continue
        if answer["metadata"]["generation"] != (answer.get("status") or {}).get("observedGeneration"):
            said.append(f"StatefulSet {name} restarts with what it reads at its start")
    return said
