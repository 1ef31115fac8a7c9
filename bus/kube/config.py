"""Which cluster, and who we are there: read by the official client, from a kubeconfig or a pod's service account."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config, refresh_token

from bus.kube.errors import KubeConfigError

_DEFAULT: Final = Path("~/.kube/config")


async def load(kubeconfig: str | None = None) -> tuple[Configuration, Coroutine[Any, Any, None] | None]:
    """Return how to reach the cluster, and what must run beside to keep a short-lived token fresh, if anything.

    Args:
        kubeconfig: Path of a kubeconfig. Without one ``KUBECONFIG`` counts, then the service account of the pod we run
            in, then ``~/.kube/config``.

    Raises:
        KubeConfigError: There is none, or it cannot be used.
    """
    configuration = Configuration()
    path = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if path is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # re-reads its token by itself
            return configuration, None
        path = path or str(_DEFAULT.expanduser())
        if not await asyncio.to_thread(Path(path.split(os.pathsep, maxsplit=1)[0]).is_file):
            raise KubeConfigError(f"there is no kubeconfig at {path}: pass --kubeconfig or set KUBECONFIG")
        loader = await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError, ValueError, KeyError) as error:
        raise KubeConfigError(f"the configuration of the cluster cannot be used: {error}") from error
    renews = loader.provider == "gcp" or "exec" in loader._user  # noqa: SLF001  the loader has no public word for it
    renewal: Coroutine[Any, Any, None] | None = (
        refresh_token(loader, configuration) if renews else None  # type: ignore[no-untyped-call]
    )
    return configuration, renewal
