"""Pods that take a port of their node: nobody but kube-scheduler knows which are taken."""

import pytest

from producers.watcher.reading import Reader, Refusal
from schemas import reasons
from schemas.kube.core import Amounts, Container, ContainerPort, KubePod, ObjectMeta, PodSpec
from schemas.kube.defaults import Settings
from schemas.kube.pools import GPUPoolSpec, NodeManagerConfig
from schemas.kube.resources import GPUPool


@pytest.mark.parametrize(
    ("port", "label", "node", "refused"),
    [
        (8080, "", "", True),
        (42_000, "42000.a1", "", False),  # admission has given it, and no other pod the same
        (42_001, "42000.a1", "", True),
        (0, "", "", False),
        (8080, "", "node-a", False),  # it stands there, and holds what it holds
    ],
)
def test_a_port_of_the_node_that_admission_has_not_given(port: int, label: str, node: str, refused: bool) -> None:
    settings = Settings(lambda _plural, _namespace, _name: None)
    meta = ObjectMeta(name="p", annotations={"tensor-fusion.ai/is-default-pool": "true"})
    settings.pools.put(GPUPool(meta, GPUPoolSpec(node_manager_config=NodeManagerConfig())))
    main = Container(
        name="main", resources=Amounts(limits={"nvidia.com/gpu": "1"}), ports=(ContainerPort(host_port=port),)
    )
    labels = {"gpubus.io/host-port": label} if label else {}
    spec = PodSpec(containers=(main,), scheduler_name="hami-scheduler", node_name=node)
    found = Reader(settings, lambda _namespace, _name: "").read(
        KubePod(metadata=ObjectMeta(name="a", namespace="ml", labels=labels), spec=spec)
    )
    assert isinstance(found, Refusal) == refused, found
    if isinstance(found, Refusal):
        assert found.reason == reasons.NEEDS_KUBE_SCHEDULER
        assert f"port {port} of its node" in found.message
