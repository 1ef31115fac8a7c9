"""A real control plane on loopback: etcd and kube-apiserver, on free ports, with throwaway data and RBAC on."""

import base64
import ctypes
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.local.server import free_port

ASSETS = Path(__file__).parents[1] / "assets"
NAMES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
READY_S = 90.0
SYSTEM = "tensor-fusion-sys"
"""Where our own pods and accounts are."""

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{SYSTEM}"]}, {"level": "None"}],
}
"""What our accounts do is written down, for the test of their rights."""
_PR_SET_PDEATHSIG = 1


def find_assets(*names: str) -> Path | None:
    """Return the directory that has all of ``names``: ``KUBEBUILDER_ASSETS``, or what ``make test-assets`` has built."""
    versions = {}
    for module, line in (("kube", "require k8s.io/kubernetes "), ("etcd", "require go.etcd.io/etcd/server/v3 ")):
        text = (ASSETS / module / "go.mod").read_text()
        versions[module] = next(found for found in text.splitlines() if found.startswith(line)).split()[-1]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpubus" / "assets"
    built = Path(os.environ.get("GPUBUS_TEST_ASSETS") or cache) / f"kube-{versions['kube']}-etcd-{versions['etcd']}"
    given = os.environ.get("KUBEBUILDER_ASSETS")
    for place in ([Path(given)] if given else []) + [built]:
        if all(os.access(place / name, os.X_OK) for name in names):
            return place
    return None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ControlPlane:
    """etcd and kube-apiserver; killed at the end, for their data is thrown away."""

    def __init__(self, assets: Path, home: Path) -> None:
        self.assets, self.home = assets, home
        self.port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self.token = secrets.token_hex(16)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = home / "admin.kubeconfig"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.home / "certs" / "apiserver.crt"

    @property
    def audit(self) -> Path:
        """Where the API server writes down what our accounts do."""
        return self.home / "audit.log"

    def pids(self) -> dict[str, int]:
        """Return the processes that run, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (self.home / "sa.key").write_bytes(private)
        (self.home / "sa.pub").write_bytes(public)
        (self.home / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
        (self.home / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self.start_etcd()
        self.start_apiserver()
        self.write_kubeconfig(self.kubeconfig, self.token)

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            f"--data-dir={self.home / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )

    def start_apiserver(self, *more: str) -> None:
        """Start it, with ``more`` flags than usual."""
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.home / 'certs'}",
            f"--token-auth-file={self.home / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.home / 'sa.pub'}",
            f"--service-account-signing-key-file={self.home / 'sa.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # No controller makes default accounts or lifts the taint of a new node.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--audit-policy-file={self.home / 'audit.yaml'}",
            f"--audit-log-path={self.audit}",
            "--allow-privileged=true",
            "--profiling=false",
            *more,
        )
        self._await_ready()

    def compact(self) -> None:
        """Have etcd forget every revision but the newest."""
        revision = self._etcd("range", {"key": "AA=="})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Delete an object behind the API server's back, as whoever deletes it while a watch is interrupted."""
        key = base64.b64encode(f"/registry/{resource}/{namespace}/{name}".encode()).decode()
        assert self._etcd("deleterange", {"key": key})["deleted"] == "1"

    def _etcd(self, what: str, question: dict[str, object]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{what}"
        with urllib.request.urlopen(url, data=json.dumps(question).encode(), timeout=10) as answer:
            return json.load(answer)

    def start_controllers(self, *names: str) -> None:
        """Start kube-controller-manager with only the controllers named, such as ``replicaset``."""
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(names)}",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.home / 'controllers'}",
            "--leader-elect=false",
        )

    def start_scheduler(self, config: Path) -> None:
        """Start kube-scheduler with the configuration in a file."""
        self._run(
            "kube-scheduler",
            f"--config={config}",
            # It does not hear of GPUs that become free.
            "--pod-max-in-unschedulable-pods-duration=1s",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.home / 'scheduler'}",
        )

    def stop(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=30)

    def stop_all(self) -> None:
        for name in list(self._processes):
            self.stop(name)
        shutil.rmtree(self.home, ignore_errors=True)

    def write_kubeconfig(self, path: Path, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))

    def _run(self, name: str, *arguments: str) -> None:
        log = (self.home / f"{name}.log").open("ab")
        environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        self._processes[name] = subprocess.Popen(
            [self.assets / name, *arguments],
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  it makes one system call
        )
        log.close()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            if self._processes["kube-apiserver"].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.home / "kube-apiserver.log").read_text()[-3000:])
            try:
                context = ssl.create_default_context(cafile=str(self.ca))
                request = urllib.request.Request(
                    f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"}
                )
                with urllib.request.urlopen(request, context=context, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
