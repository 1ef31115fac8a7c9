"""Both guides as a user follows them, with helm and kubectl themselves: installed, looked at, upgraded, rolled back, removed.

No kubelet runs, so pods stay pending; what the issuer's Job runs is run here, with the Job's own account.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.kube.client import MERGE, resource_path
from bus.kube.errors import KubeRefusedError
from bus.tasks import end
from deploy.cli.main import main
from tests.chart import helm
from tests.chart.render import CHART, GUIDES
from tests.integration.cluster import SYSTEM, Cluster
from tests.integration.plane import ControlPlane
from tests.integration.test_certificates import issue

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COMPLETE = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
STARTED = "2026-01-01T00:00:00Z"
KEPT = ("ca", "webhook-tls", "nats-tls", "nats-auth")


class User:
    """Whoever installs: types commands, with the administrator's kubeconfig."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._kubeconfig, self._home = kubeconfig, home

    async def helm(self, *words: str) -> str:
        return await self._type("helm", *words)

    async def kubectl(self, *words: str) -> str:
        return await self._type("kubectl", *words)

    async def _type(self, name: str, *words: str) -> str:
        return await asyncio.to_thread(
            helm.run, *words, "--kubeconfig", str(self._kubeconfig), home=self._home, name=name
        )


@contextlib.asynccontextmanager
async def jobs_done(cluster: Cluster, kubeconfig_for: Callable[..., Any], release: str) -> AsyncIterator[list[str]]:
    """Do what the issuer's Jobs do, as their pods would; gives the lines that they say."""
    said: list[str] = []

    async def play() -> None:
        while True:
            await asyncio.sleep(0.1)
            for job in await cluster.list("Job", SYSTEM, "batch/v1"):
                if job["status"].get("conditions"):
                    continue
                said.extend(await issue(await kubeconfig_for(f"{release}-issuer"), job))
                status = {"startTime": STARTED, "completionTime": STARTED, "succeeded": 1, "conditions": COMPLETE}
                path = resource_path("batch/v1", "jobs", SYSTEM, job["metadata"]["name"], "status")
                await cluster.client.call(
                    "PATCH", path, body=json.dumps({"status": status}).encode(), content_type=MERGE
                )

    playing = asyncio.create_task(play())
    try:
        yield said
    finally:
        await end(playing)


@pytest.fixture
def user(plane: ControlPlane, tmp_path: Path) -> User:
    for name in ("helm", "kubectl"):
        helm.find(name)
    return User(plane.kubeconfig, tmp_path)


@pytest.mark.parametrize(("guide", "release"), [("000", SYSTEM), ("004", "hami")])
async def test_a_guide_is_followed_to_its_end(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    plane: ControlPlane,
    user: User,
    kubeconfig_for: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    guide: str,
    release: str,
) -> None:
    values = ["-f", str(CHART / "values-production.yaml")]
    for file in GUIDES:
        if file.stem.startswith(guide) and "alertmanager-other" not in file.stem and "cloud" not in file.stem:
            values += ["-f", str(file)]
    if guide == "004":  # no cert-manager is here
        values += ["--set", "webhook.certManager.enabled=false", "--set", "monitor.serviceMonitor.enabled=false"]
    # Kinds and PriorityClasses are there, as where TensorFusion was installed before.
    where = ("--namespace", SYSTEM, "--create-namespace", "--skip-crds", "--set", "priorityClasses.enabled=false")
    install = ("upgrade", "--install", release, str(CHART), *where, *values)
    async with jobs_done(cluster, kubeconfig_for, release) as said:
        try:
            shown = await user.helm(*install)
            assert "STATUS: deployed" in shown
            assert any("is made" in line for line in said)
            assert any("believes the authority" in line for line in said)
            await looks_right(user, release)
            await asyncio.to_thread(is_found_well, plane, release, capsys)
            await user.helm(*install, "--set", "scheduler.replicas=2")
            assert await replicas(user, release) == "2"
            await user.helm("rollback", release, "1", "--namespace", SYSTEM)
            assert await replicas(user, release) == "3"
            history = json.loads(await user.helm("history", release, "--namespace", SYSTEM, "-o", "json"))
            assert [one["status"] for one in history] == ["superseded", "superseded", "deployed"]
        finally:
            await user.helm("uninstall", release, "--namespace", SYSTEM, "--ignore-not-found")
            for part in KEPT:
                with contextlib.suppress(KubeRefusedError):
                    await cluster.delete("Secret", f"{release}-{part}", SYSTEM)


def is_found_well(plane: ControlPlane, release: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``gpubus doctor``, of all that needs no kubelet: nothing runs, so the bus is away and nobody is ready."""
    options = ("--namespace", SYSTEM, "--release", release, "--kubeconfig", str(plane.kubeconfig))
    assert main(["doctor", "--nats", "tls://127.0.0.1:9", "--json", *options]) == 3
    found: dict[str, set[str]] = {}
    for one in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(one["check"], set()).add(one["severity"])
    well = {check for check, severities in found.items() if severities == {"ok"}}
    accounts = {f"cluster/rights/{release}-{part}" for part in ("controller", "scheduler", "webhook", "monitor")}
    certificates = {f"cluster/certificates/{release}-{part}" for part in ("ca", "webhook-tls", "nats-tls")}
    assert {"cluster/crds", "cluster/webhook"} | accounts | certificates <= well
    assert found["cluster/admission"] == found["bus"] == {"critical"}


async def replicas(user: User, release: str) -> str:
    name = f"deployment/{release}-scheduler"
    return await user.kubectl("get", name, "-n", SYSTEM, "-o", "jsonpath={.spec.replicas}")


async def looks_right(user: User, release: str) -> None:
    """What the guides have their readers look at."""
    assert f"{release}\t" in await user.helm("list", "-n", SYSTEM)
    assert await user.kubectl("get", "tensorfusioncluster,gpupool")
    deployments = (await user.kubectl("get", "deployments", "-n", SYSTEM, "-o", "name")).split()
    groups = {f"deployment.apps/{release}-{part}" for part in ("controller", "scheduler", "webhook", "monitor")}
    assert groups <= set(deployments)
    hook = f"mutatingwebhookconfiguration/{release}-mutating-webhook"
    assert await user.kubectl("get", hook, "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}")
