"""The external scaler: somebody else's service that recommends requests (``externalScaler``)."""

import asyncio
import base64
from datetime import datetime
from typing import Any, Final

import httpx
import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeError
from consumers.scaler.workloads import Key
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.kube.autoscaling import External
from schemas.kube.base import Contract, Resources
from schemas.kube.defaults import read_resources
from schemas.quantity import format_bytes, format_milli
from schemas.scaling import Advice

TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 64 * 1024


class ExternalError(Exception):
    """No usable answer. The message says why."""


class _Answer(Contract, frozen=True):
    need_scale_up: bool = False
    need_scale_down: bool = False
    reason: str = ""
    recommended_resources: Resources | None = None


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


def quantities(resources: GpuResources) -> dict[str, dict[str, str]]:
    """Return resources as custom resources write them; what is not stated is left out."""

    def written(amounts: GpuAmounts) -> dict[str, str]:
        texts = {
            "tflops": format_milli(amounts.tflops_milli) if amounts.tflops_milli else "",
            "compute": format_milli(amounts.compute_milli * 100) if amounts.compute_milli else "",
            "vram": format_bytes(amounts.vram_bytes) if amounts.vram_bytes else "",
        }
        return {key: text for key, text in texts.items() if text}

    return {"requests": written(resources.requests), "limits": written(resources.limits)}


async def ask(http: httpx.AsyncClient, client: Client, external: External, key: Key, now: GpuResources) -> Advice:
    """Ask for a recommendation; advice without a source says that there is nothing to change.

    Raises:
        ExternalError: It did not answer in time, refused, or said something that cannot be understood.
    """
    namespace, workload = key
    body: dict[str, Any] = {"workloadName": workload, "namespace": namespace, "currentResources": quantities(now)}
    headers = await _headers(client, external, namespace)
    content = await _content(http, external.url, body, headers)
    try:
        answer = msgspec.json.decode(content, type=_Answer)
        resources = read_resources(answer.recommended_resources, "recommendedResources")
    except (msgspec.DecodeError, RequestError) as error:
        raise ExternalError(f"{external.url} answered what cannot be understood: {error}") from None
    if not (answer.need_scale_up or answer.need_scale_down) or resources == GpuResources():
        return Advice(reason=answer.reason or "the external scaler has nothing to change")
    return Advice(source="external", resources=resources, reason=answer.reason or "recommended by the external scaler")


async def _content(http: httpx.AsyncClient, url: str, body: dict[str, Any], headers: dict[str, str]) -> bytes:
    """Return what is answered, all of it within the time allowed: who drips must not hold up the workloads behind it."""
    found = bytearray()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            http.stream("POST", url, json=body, headers=headers, timeout=TIMEOUT_S) as response,
        ):
            if not response.is_success:
                raise ExternalError(f"{url} answered {response.status_code}")
            async for part in response.aiter_bytes():
                found += part
                if len(found) > MOST_BYTES:
                    raise ExternalError(f"{url} answered more than {MOST_BYTES} bytes")
    except (httpx.HTTPError, httpx.StreamError, TimeoutError) as error:
        raise ExternalError(f"{url} did not answer: {str(error) or type(error).__name__}") from None
    return bytes(found)


async def _headers(client: Client, external: External, namespace: str) -> dict[str, str]:
    if not external.secret:
        return {}
    key = external.secret_key or "apiKey"
    try:
        content = await client.call("GET", resource_path("v1", "secrets", namespace, external.secret))
    except KubeError as error:
        raise ExternalError(f"secret {namespace}/{external.secret} could not be read: {error}") from None
    encoded = msgspec.json.decode(content, type=_Secret).data.get(key)
    if encoded is None:
        raise ExternalError(f"secret {namespace}/{external.secret} has no key {key}: add it, or name another one")
    return {"Authorization": f"Bearer {base64.b64decode(encoded).decode().strip()}"}


def is_due(asked: datetime | None, now: datetime, external: External) -> bool:
    """Return whether it is time to ask."""
    return asked is None or (now - asked).total_seconds() >= external.interval_s
