"""What the roles around metrics and alerts are told by their environment.

``GPUBUS_METRICS`` names the metrics store and, where a Secret has the login, ``GPUBUS_METRICS_USER`` and
``GPUBUS_METRICS_PASSWORD`` who to be there, ``GPUBUS_ALERTMANAGER`` the addresses of all Alertmanagers, separated by commas,
``GPUBUS_ALERT_RULES`` where alert rules are written: a file, or ``configmap:NAMESPACE/NAME/KEY``, ``GPUBUS_RUNBOOKS`` where
people on call can read ``deploy/runbooks/alerts.md``, ``GPUBUS_OFFERS`` a file of the kinds of nodes that can be had,
and ``GPUBUS_PLACEHOLDER_IMAGE`` what the pods run that keep warm reserves.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consumers.alerter.sources import RuleSource
    from consumers.metrics.store import MetricsStore
    from schemas.capacity import Offer

METRICS: Final = "GPUBUS_METRICS"
METRICS_USER: Final = "GPUBUS_METRICS_USER"
METRICS_PASSWORD: Final = "GPUBUS_METRICS_PASSWORD"  # noqa: S105  the name of a variable
ALERTMANAGER: Final = "GPUBUS_ALERTMANAGER"
RULES: Final = "GPUBUS_ALERT_RULES"
OFFERS: Final = "GPUBUS_OFFERS"
PLACEHOLDER_IMAGE: Final = "GPUBUS_PLACEHOLDER_IMAGE"
RUNBOOKS: Final = "GPUBUS_RUNBOOKS"

OPEN_TIMEOUT_S: Final = 30.0

log = logging.getLogger("gpubus.monitoring")

_shared: dict[str, tuple["MetricsStore", int]] = {}
"""Open stores by URL with the number of roles that use them: a DuckDB file can be opened only once."""


class SettingError(ValueError):
    """A setting is missing or wrong. The message names it and the fix."""


@asynccontextmanager
async def metrics_store() -> AsyncIterator["MetricsStore"]:
    """Open the store that the environment names; roles of one process share it.

    Raises:
        SettingError: None is named, or the name is not understood.
        StoreError: It cannot be opened.
    """
    from consumers.metrics.settings import EXAMPLES, store, with_login

    url = os.environ.get(METRICS, "")
    if not url:
        raise SettingError(f"{METRICS} is not set: write where metrics are kept, such as {EXAMPLES}")
    try:
        url = with_login(url, os.environ.get(METRICS_USER, ""), os.environ.get(METRICS_PASSWORD, ""))
    except ValueError as error:
        raise SettingError(f"{METRICS_USER}, {METRICS_PASSWORD}: {error}") from None
    if url in _shared:
        opened, users = _shared[url]
        _shared[url] = (opened, users + 1)
    else:
        try:
            opened = store(url)
        except ValueError as error:
            raise SettingError(f"{METRICS}: {error}") from None
        _shared[url] = (opened, 1)
        try:
            await _open(opened)
        except BaseException:
            del _shared[url]
            await opened.close()
            raise
    try:
        yield opened
    finally:
        opened, users = _shared[url]
        _shared[url] = (opened, users - 1)
        if users == 1:
            del _shared[url]
            await opened.close()


async def _open(opened: "MetricsStore") -> None:
    """Open a store; one that is just starting is waited for."""
    from consumers.metrics.store import StoreUnavailableError

    deadline, said = time.monotonic() + OPEN_TIMEOUT_S, ""
    while True:
        try:
            await opened.open()
        except StoreUnavailableError as error:
            if time.monotonic() > deadline:
                raise
            if said != str(error):
                said = str(error)
                log.warning("the metrics store cannot be opened yet: %s; trying for %g s", said, OPEN_TIMEOUT_S)
            await asyncio.sleep(1.0)
        else:
            return


def alertmanagers() -> list[str]:
    """Return the addresses of all Alertmanagers.

    Raises:
        SettingError: None is set, or one is no HTTP URL.
    """
    from consumers.notifier.service import checked

    found = [address.strip() for address in os.environ.get(ALERTMANAGER, "").split(",") if address.strip()]
    if not found:
        raise SettingError(f"{ALERTMANAGER} is not set: write every address, such as http://alert-manager:9093")
    try:
        return [checked(address) for address in found]
    except ValueError as error:
        raise SettingError(f"{ALERTMANAGER}: {error}") from None


def runbooks() -> str:
    """Return the address of the published runbooks; empty where there is none.

    Raises:
        SettingError: It is no HTTP URL.
    """
    written = os.environ.get(RUNBOOKS, "")
    if written and not written.startswith(("http://", "https://")):
        raise SettingError(
            f"{RUNBOOKS} {written!r}: write the address of the page, such as https://wiki.example/gpu-alerts"
        )
    return written


@asynccontextmanager
async def rule_source() -> AsyncIterator["RuleSource | None"]:
    """Return where alert rules are written, if that is set.

    Raises:
        SettingError: It is no file and no key of a ConfigMap.
        KubeConfigError: There is no usable configuration of a cluster.
    """
    from consumers.alerter.sources import ConfigMapSource, FileSource

    written = os.environ.get(RULES, "")
    if not written:
        yield None
    elif not written.startswith("configmap:"):
        yield FileSource(Path(written))
    else:
        from bus.kube.client import Client

        match written.removeprefix("configmap:").split("/"):
            case [namespace, name, key] if namespace and name and key:
                async with await Client.connect() as client:
                    yield ConfigMapSource(client, namespace, name, key)
            case _:
                raise SettingError(f"{RULES} {written!r}: write a file, or configmap:NAMESPACE/NAME/KEY")


def node_offers() -> "tuple[Offer, ...]":
    """Return the kinds of nodes that can be had; none where no file of them is named.

    Raises:
        SettingError: The file cannot be used.
    """
    from consumers.scaler.offers import OffersError, read_offers

    written = os.environ.get(OFFERS, "")
    try:
        return read_offers(Path(written)) if written else ()
    except OffersError as error:
        raise SettingError(f"{OFFERS}: {error}") from None


def alertmanagers_from_values(values: Mapping[str, Any], *, namespace: str) -> list[str]:
    """Return the addresses that chart values ask for: ``-alert-manager-addr`` in ``controller.command``, or the chart's own.

    Raises:
        SettingError: The chart's own is off and no other is named.
    """
    controller, alert = values.get("controller") or {}, values.get("alert") or {}
    command = [str(word) for word in controller.get("command") or []]
    for number, word in enumerate(command):
        flag, _, attached = word.lstrip("-").partition("=")
        if flag == "alert-manager-addr":
            following = command[number + 1] if number + 1 < len(command) else ""
            return [address for address in (attached or following).split(",") if address]
    if alert.get("enabled", True):
        return [f"http://alert-manager.{namespace}.svc.cluster.local:9093"]
    raise SettingError("alert.enabled is false and controller.command has no -alert-manager-addr: name one of the two")
