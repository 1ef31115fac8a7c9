"""The scheduler's configuration, followed: what pools are told of it and when."""

from datetime import UTC, datetime

import pytest

from producers.watcher.plan import Stored
from producers.watcher.scheduling import ConfigMap, SchedulerConfig
from producers.watcher.world import POOL, World
from schemas.cluster import Pool
from schemas.kube.core import ObjectMeta
from schemas.kube.pools import GPUPoolSpec, NodeManagerConfig
from schemas.kube.resources import GPUPool

KEY = "scheduler-config.yaml"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Followed:
    """A world with one pool, of version 5, and the configuration that it follows."""

    def __init__(self) -> None:
        self.world = World(lambda: None)
        self.config = SchedulerConfig(self.world.settings, ("system", "config", KEY))
        self.world.settings.pools.put(
            GPUPool(
                metadata=ObjectMeta(name="p", resource_version="5"),
                spec=GPUPoolSpec(node_manager_config=NodeManagerConfig()),
            )
        )

    def write(self, version: int, workers: str, **other: str) -> None:
        args = f"{{name: GPUResourcesFit, args: {{maxWorkerPerNode: {workers}}}}}"
        text = f"profiles: [{{schedulerName: tensor-fusion-scheduler, pluginConfig: [{args}]}}]"
        self.config.put(ConfigMap(ObjectMeta(resource_version=str(version)), {KEY: text, **other}))

    def pool(self) -> tuple[Pool | None, int]:
        return self.world.settings.pool("p"), self.world.settings.version("p")

    def marked(self) -> bool:
        return self.world.dirty.pop((POOL, ("p",)), None) is not None

    def said(self, stored: Stored | None) -> bool:
        return self.world.tell(POOL, ("p",), stored, NOW, 1) is not None


def test_pools_follow_it_from_the_version_on_that_says_so() -> None:
    followed = Followed()
    followed.write(7, "3")
    assert followed.marked()
    assert followed.pool() == (Pool(name="p", max_workers_per_node=3), 7)
    followed.write(8, "3", other="another key")
    assert not followed.marked()
    assert followed.pool()[1] == 7
    followed.write(9, "4")
    assert followed.marked()
    assert followed.pool() == (Pool(name="p", max_workers_per_node=4), 9)


def test_what_cannot_be_read_leaves_pools_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed()
    followed.write(7, "3")
    followed.marked()
    followed.write(8, "many")
    assert "args.maxWorkerPerNode: 'many' is not right" in caplog.text
    followed.config.gone("system", "config", 9)
    assert "ConfigMap system/config does not exist" in caplog.text
    assert not followed.marked()
    assert followed.pool() == (Pool(name="p", max_workers_per_node=3), 7)
    assert not followed.config.unready()
    followed.write(10, "3")
    assert not followed.config.problem


def test_a_watcher_that_never_could_read_it_tells_no_pool_and_is_not_ready() -> None:
    followed = Followed()
    stored = Stored(0, 3, b"what an earlier watcher said", None)
    for spoil in (lambda: followed.write(7, "many"), lambda: followed.config.complete(8)):
        spoil()
        assert "ConfigMap system/config" in followed.config.unready()
        assert not followed.said(stored)
        assert not followed.said(None)
    followed.write(9, "3")
    assert not followed.config.unready()
    assert followed.marked()
    assert followed.said(stored)
    # A pool that is no more is told of all the same.
    again = Followed()
    again.world.settings.pools.gone("", "p", 6)
    assert again.said(stored)


def test_a_key_that_is_missing_is_named() -> None:
    followed = Followed()
    followed.config.put(ConfigMap(ObjectMeta(resource_version="7"), {"config.yaml": ""}))
    assert "has no key scheduler-config.yaml" in followed.config.unready()
