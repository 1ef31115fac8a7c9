"""The bus as the chart has it: three servers from its own ``nats.conf``, with its accounts and certificates, on loopback."""

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from bus.security import Security
from deploy.certificates.renewal import Wanted, renewed
from deploy.local.server import find_binary, free_port
from tests.chart.render import rendered
from tests.integration.cluster import SYSTEM

RELEASE = "secured"
SERVERS = 3
SECONDS = 20.0


class SecuredBus:
    """Servers, Secrets and what a process of each group is told; nothing is written that the chart has not rendered."""

    def __init__(self, home: Path, values: dict[str, Any] | None = None) -> None:
        self.home = home
        self.objects, _ = rendered(values or {}, name=RELEASE, namespace=SYSTEM)
        arguments = self.objects["Job", f"{RELEASE}-issuer"]["spec"]["template"]["spec"]["containers"][0]["args"]
        given = dict(pairwise(arguments))
        wanted = Wanted(
            authority="ca",
            leaves={
                "nats-tls": given["--bus"].split(","),
                "webhook-tls": [*given["--webhook"].split(","), "localhost"],  # no name of a Service leads here
            },
            passwords={"auth": given["--passwords"].split(",")},
            callout="auth" if "--callout" in arguments else "",
        )
        self.secrets = renewed({}, wanted, datetime.now(UTC))
        for name, data in self.secrets.items():
            for key, value in data.items():
                file = home / name / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(value)
        self.ports = [(free_port(), free_port(), free_port()) for _ in range(SERVERS)]
        self.processes: list[asyncio.subprocess.Process | None] = [None] * SERVERS

    @property
    def urls(self) -> list[str]:
        return [f"tls://localhost:{client}" for client, _, _ in self.ports]

    def config(self, index: int) -> str:
        """Return the chart's configuration with this machine's addresses and paths in it, and nothing else changed."""
        text = self.objects["ConfigMap", f"{RELEASE}-nats"]["data"]["nats.conf"]
        client, cluster, monitor = self.ports[index]
        for old, new in (
            ('listen: "0.0.0.0:4222"', f'listen: "127.0.0.1:{client}"'),
            ('http: "0.0.0.0:8222"', f'http: "127.0.0.1:{monitor}"'),
            ('listen: "0.0.0.0:6222"', f'listen: "127.0.0.1:{cluster}"'),
            ('store_dir: "/data"', f'store_dir: "{self.home / f"data{index}"}"'),
            ('pid_file: "/tmp/nats.pid"', f'pid_file: "{self.home / f"{index}.pid"}"'),
            *(
                (f"{RELEASE}-nats-{n}.{RELEASE}-nats-headless.{SYSTEM}.svc:6222", f"localhost:{self.ports[n][1]}")
                for n in range(SERVERS)
            ),
        ):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        assert text.count("/etc/nats/tls/") == 6
        return text.replace("/etc/nats/tls/", f"{self.home / 'nats-tls'}/")

    async def start(self) -> None:
        await asyncio.gather(*map(self.start_one, range(SERVERS)))

    async def start_one(self, index: int) -> None:
        container = self.objects["StatefulSet", f"{RELEASE}-nats"]["spec"]["template"]["spec"]["containers"][0]
        environment = {"PATH": os.environ["PATH"], "POD_NAME": f"{RELEASE}-nats-{index}"}
        for variable in container["env"]:
            secret = variable.get("valueFrom", {}).get("secretKeyRef")
            if secret:
                environment[variable["name"]] = self.secrets["auth"][secret["key"]].decode()
        file = self.home / f"nats{index}.conf"
        file.write_text(self.config(index))
        with (self.home / f"nats{index}.log").open("ab") as log:
            self.processes[index] = await asyncio.create_subprocess_exec(
                find_binary(), "--config", str(file), env=environment, stdout=log, stderr=log
            )
        async with asyncio.timeout(SECONDS):
            while not await asyncio.to_thread(self._healthy, index):
                process = self.processes[index]
                assert process is None or process.returncode is None, self.log(index)
                await asyncio.sleep(0.05)

    def _healthy(self, index: int) -> bool:
        url = f"http://127.0.0.1:{self.ports[index][2]}/healthz?js-server-only=true"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return json.load(answer).get("status") == "ok"
        except (OSError, ValueError):
            return False

    async def kill(self, name: str) -> int:
        """SIGKILL the server of that name; return which it was."""
        index = int(name.rpartition("-")[2])
        process, self.processes[index] = self.processes[index], None
        assert process is not None
        process.kill()
        await process.wait()
        return index

    async def stop(self) -> None:
        for process in self.processes:
            if process is not None:
                process.kill()
                await process.wait()

    def log(self, index: int) -> str:
        file = self.home / f"nats{index}.log"
        return file.read_text() if file.exists() else ""

    def violations(self) -> list[str]:
        """What somebody has tried that is not allowed."""
        lines = [line for index in range(SERVERS) for line in self.log(index).splitlines()]
        return [re.sub(r"^.*?\[ERR\]", "", line) for line in lines if "Violation" in line]

    def shown(self, user: str, password: Path | None = None) -> dict[str, str]:
        """What a process of this user is told by its environment."""
        return {
            "GPUBUS_NATS_CA": str(self.home / "nats-tls" / "ca.crt"),
            "GPUBUS_NATS_USER": user,
            "GPUBUS_NATS_PASSWORD_FILE": str(password or self.home / "auth" / user),
        }

    def security(self, user: str, password: Path | None = None) -> Security:
        return Security.of(self.shown(user, password))

    def commands(self, part: str) -> list[list[str]]:
        """What the containers of a group run, with this machine's paths and ports."""
        found = []
        for container in self.objects["Deployment", f"{RELEASE}-{part}"]["spec"]["template"]["spec"]["containers"]:
            given = container["args"][container["args"].index("run") + 1 :]
            options = ["--replicas", given[given.index("--replicas") + 1]]
            if given[0] == "group":
                options = [given[1], *options]
            elif given[0] == "gateway":
                options += ["--listen", f"127.0.0.1:{free_port()}"]
                if "--certificate" in given:
                    tls = self.home / "webhook-tls"
                    options += ["--certificate", str(tls / "tls.crt"), "--key", str(tls / "tls.key")]
            else:
                config = self.home / "admission.yaml"
                config.write_text(self.objects["ConfigMap", f"{RELEASE}-config"]["data"]["admission.yaml"])
                options += ["--config", str(config)]
            found.append([given[0], *options])
        return found

    def environment(self, part: str, more: Mapping[str, str]) -> dict[str, str]:
        """What the container of a group is told, with this machine's paths."""
        container = self.objects["Deployment", f"{RELEASE}-{part}"]["spec"]["template"]["spec"]["containers"][0]
        named = {one["name"] for one in container["env"]}
        environment = self.shown(part)
        assert set(environment) <= named
        plain = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        if "GPUBUS_CALLOUT_SEED_FILE" in named:
            environment["GPUBUS_CALLOUT_SEED_FILE"] = str(self.home / "auth" / "callout-seed")
            environment |= {key: plain[key] for key in ("GPUBUS_AGENT_ACCOUNT", "GPUBUS_AGENT_AUDIENCE")}
        return environment | {key: value for key, value in more.items() if key in named}
