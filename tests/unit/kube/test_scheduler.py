"""The scheduler's configuration, as charts write it."""

from typing import Any

import pytest
import yaml

from schemas.dialects.text import RequestError
from schemas.kube.scheduler import Scheduling, read_scheduling
from schemas.placement import TopologyRules


def config(*plugins: dict[str, Any], **more: Any) -> str:
    profile = {"schedulerName": "tensor-fusion-scheduler", "pluginConfig": [*plugins]}
    return yaml.safe_dump({"kind": "KubeSchedulerConfiguration", "profiles": [profile], **more})


def fit(**args: Any) -> dict[str, Any]:
    return {"name": "GPUResourcesFit", "args": args}


def topology(**args: Any) -> dict[str, Any]:
    return {"name": "GPUNetworkTopologyAware", "args": args}


def test_every_argument_is_read() -> None:
    written = config(
        fit(maxWorkerPerNode=3, vramWeight=0.29, tflopsWeight=0.71),
        topology(
            mode="hard",
            topologySource="numa",
            maxAllowedTier=0,
            unknownTopologyPolicy="reject",
            preferLeastDamage=False,
        ),
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "RequestedToCapacityRatio"}}},
        policy={"nodeSchedulerPolicy": "spread", "gpuSchedulerPolicy": "topology-aware"},
        parallelism=16,
    )
    assert read_scheduling(written) == Scheduling(
        max_workers_per_node=3,
        vram_weight=29,
        tflops_weight=71,
        topology=TopologyRules(
            mode="hard", source="numa", max_allowed_tier=0, unknown_topology="reject", prefer_least_damage=False
        ),
        node_policy="spread",
        gpu_policies=("topology-aware",),
        unfollowed=("NodeResourcesFit",),
    )


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("", Scheduling()),
        (config(), Scheduling()),
        (config(fit()), Scheduling()),
        (config(fit(vramWeight=1)), Scheduling(vram_weight=100, tflops_weight=0)),
        (config(topology()), Scheduling(topology=TopologyRules())),
        (config(policy={"gpuSchedulerPolicy": ""}), Scheduling()),
        ("profiles: [{schedulerName: default-scheduler, pluginConfig: [{name: Mine, args: {a: 1}}]}]", Scheduling()),
    ],
)
def test_what_is_left_out_is_as_by_default(written: str, found: Scheduling) -> None:
    assert read_scheduling(written) == found


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (config(fit(maxWorkersPerNode=3)), r"args\.maxWorkersPerNode: '' is not known: use one of .*maxWorkerPerNode"),
        (config(fit(maxWorkerPerNode=-1)), r"args\.maxWorkerPerNode: '-1' is not right: Expected `int` >= 0"),
        (config(fit(vramWeight=1.5)), r"args\.vramWeight: '1.5' is not right"),
        (config(fit(vramWeight=0.705, tflopsWeight=0.3)), r"vramWeight: '0.705' is finer than a hundredth: write 0\.7"),
        (config(topology(mode="strict")), r"profiles\[0\]\.pluginConfig\[0\]\.args\.mode: 'strict' is not right"),
        (config(topology(maxAllowedTier=4)), r"maxAllowedTier: '4' is not right"),
        (config(topology(preferLeastDamage="yes please")), r"preferLeastDamage: 'yes please' is not right"),
        (
            config({"name": "GPUResourceFit"}),
            r"pluginConfig\[0\]\.name: 'GPUResourceFit' is no plugin: use GPUResourcesFit",
        ),
        (config(fit(), fit(vramWeight=1)), r"pluginConfig\[1\]\.name: 'GPUResourcesFit' has arguments already"),
        (config(policy={"nodeSchedulerPolicy": "pack"}), r"policy\.nodeSchedulerPolicy: 'pack' is not right"),
        (config(policy={"nodePolicy": "spread"}), r"policy\.nodePolicy: '' is not known"),
        (config(profile=[]), r"schedulerConfig\.profile: '' is not known: use one of .*profiles"),
        ("profiles: {}", r"schedulerConfig\.profiles: '\{\}' is no list"),
        ("[]", r"schedulerConfig: '\[\]' is no object"),
        ("a: [", r"schedulerConfig: '' is no YAML"),
        (
            "profiles: [{schedulerName: hami-scheduler, plugins: {multiPoint: {disabled: [{name: GPUNetworkTopologyAware}]}}}]",
            r"multiPoint\.disabled: 'GPUNetworkTopologyAware' cannot be switched off: take out its pluginConfig",
        ),
    ],
)
def test_what_is_not_understood_is_refused_with_field_value_and_fix(written: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_scheduling(written)
