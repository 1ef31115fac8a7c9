"""The configuration of a stock kube-scheduler that asks us where pods with GPUs fit, and has us bind them.

Source of the form: ``kubescheduler.config.k8s.io/v1``. An extender counts for every profile of its kube-scheduler, so this one
is a kube-scheduler of its own, with one profile: pods without GPUs stay with the cluster's.
"""

import base64
from typing import Any, Final

from producers.gateway.extender import PREFIX

WEIGHT: Final = 5
"""Our best and worst node differ by 10 times as much as in one of kube-scheduler's own scores, times a tenth of this."""

TIMEOUT_S: Final = 30
"""Longer than the gateway takes for ``bind`` at the most."""


def scheduler_configuration(
    name: str,
    *,
    ca_bundle: bytes,
    url: str,
    kubeconfig: str = "",
    lease: str = "",
    client: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return the configuration as an object for kube-scheduler's ``--config``.

    Args:
        name: What pods write in ``schedulerName``.
        ca_bundle: PEM of who signed the gateway's certificate.
        url: Where the gateway is, ``https://`` and no path.
        kubeconfig: File with the account to use; empty: the pod's own.
        lease: Namespace of the lease by which several replicas choose one; empty: there is one replica.
        client: Files, where kube-scheduler runs, of the certificate that it shows the gateway, and of its private key.
    """
    tls = {"caData": base64.b64encode(ca_bundle).decode()}
    if client is not None:
        tls |= {"certFile": client[0], "keyFile": client[1]}
    election: dict[str, Any] = {"leaderElect": bool(lease)}
    if lease:
        election |= {"resourceName": name, "resourceNamespace": lease}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": election,
        # The defaults of 50 and 100 bind no more than some 50 pods a second.
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 1000, "burst": 1000},
        # By default a sample of the nodes is offered: those with free GPUs may not be among it.
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": name}],
        "extenders": [
            {
                "urlPrefix": f"{url}{PREFIX}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": WEIGHT,
                "enableHTTPS": True,
                "tlsConfig": tls,
                "httpTimeout": f"{TIMEOUT_S}s",
                "nodeCacheCapable": True,
                "ignorable": False,
            }
        ],
    }
