"""Alert rules in a ConfigMap of a real API server, watched with the rights that the alerter has in production."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.kube.client import Client
from bus.tasks import end
from consumers.alerter.rulebook import Rulebook
from consumers.alerter.sources import ConfigMapSource
from tests.behaviour.test_alert_rules import GUIDE
from tests.conftest import eventually
from tests.integration.cluster import Cluster

SYSTEM = "tensor-fusion-sys"


def config_map(text: str, key: str = "config.yaml") -> dict:
    meta = {"name": "tensor-fusion-sys-config", "namespace": SYSTEM}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {key: text}}


@pytest.mark.slow
async def test_rules_follow_their_config_map(
    bus: Bus, cluster: Cluster, kubeconfig_of: Callable[[str], Awaitable[Path]]
) -> None:
    async with await Client.connect(str(await kubeconfig_of("alerter"))) as client:
        book = Rulebook(bus, "/test", ConfigMapSource(client, SYSTEM, "tensor-fusion-sys-config", "config.yaml"))
        await book.start()
        watching = asyncio.create_task(book.watch())
        try:
            await eventually(
                lambda: refused(book) == ("ConfigMap tensor-fusion-sys/tensor-fusion-sys-config does not exist",)
            )
            await cluster.apply(config_map(GUIDE))
            await eventually(lambda: set(book.rules) == {"GPUTemperatureWarning"} and not refused(book))
            await cluster.apply(config_map(GUIDE.replace("30s", "soon")))
            await eventually(lambda: any("evaluationInterval: 'soon'" in problem for problem in refused(book)))
            await cluster.apply(config_map(GUIDE.replace("GPUTemperatureWarning", "Hot")))
            await eventually(lambda: set(book.rules) == {"Hot"} and not refused(book))
            await cluster.delete("ConfigMap", "tensor-fusion-sys-config", SYSTEM)
            await eventually(lambda: "does not exist" in "".join(refused(book)))
            assert set(book.rules) == {"Hot"}
        finally:
            await end(watching)
            await book.stop()


def refused(book: Rulebook) -> tuple[str, ...]:
    return book.refusal.problems if book.refusal is not None else ()
