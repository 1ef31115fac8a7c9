"""The custom resource definitions follow the contract, and the committed files are what the types give."""

from pathlib import Path

import msgspec
import pytest

from deploy.cli.schema import render_crds
from schemas.kube.base import contract_name
from schemas.kube.crd import definition
from schemas.kube.kinds import KINDS
from schemas.kube.resources import GPUPool

CRDS = Path(__file__).parents[3] / "deploy" / "crds"


def schema_of(kind: str, part: str = "spec") -> dict:
    found = next(one for one in KINDS if one.name == kind)
    version = definition(found)["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"][part]["properties"]


def test_committed_files_are_what_the_types_give() -> None:
    committed = {file.name: file.read_text() for file in CRDS.glob("*.yaml")}
    assert committed == render_crds(), "run `gpubus schema crds --out deploy/crds`"


def test_all_kinds_have_the_names_and_scopes_of_the_contract() -> None:
    scopes = {one.plural: one.scope for one in KINDS}
    namespaced = {"tensorfusionworkloads", "tensorfusionconnections", "workloadprofiles", "gpuresourcequotas"}
    assert {plural for plural, scope in scopes.items() if scope == "Namespaced"} == namespaced
    assert len(scopes) == 12
    assert [one.name for one in KINDS if one.status is None] == ["ProviderConfig"]
    assert [one.name for one in KINDS if one.spec is None] == ["GPU"]


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("total_tflops", "totalTFlops"),
        ("virtual_available_vram", "virtualAvailableVRAM"),
        ("default_using_local_gpu", "defaultUsingLocalGPU"),
        ("qos_config", "qosConfig"),
        ("default_qos", "defaultQoS"),
        ("total_gpus", "totalGPUs"),
        ("tflops_oversell_ratio", "tflopsOversellRatio"),
        ("gpu_count", "gpuCount"),
    ],
)
def test_fields_are_spelled_as_in_the_contract(name: str, spelling: str) -> None:
    assert contract_name(name) == spelling


def test_defaults_and_bounds_reach_the_schema() -> None:
    manager = schema_of("GPUPool")["nodeManagerConfig"]["properties"]
    assert manager["provisioningMode"]["default"] == "AutoSelect"
    assert manager["nodePoolRollingUpdatePolicy"]["properties"]["batchPercentage"]["minimum"] == 1
    over = schema_of("GPUPool")["capacityConfig"]["properties"]["oversubscription"]["properties"]
    assert over["tflopsOversellRatio"] == {
        "type": "integer",
        "format": "int32",
        "minimum": 100,
        "maximum": 100_000,
        "default": 500,
    }
    assert schema_of("GPUResourceQuota")["total"]["properties"]["alertThresholdPercent"]["default"] == 95
    assert "default" not in schema_of("WorkloadProfile")["replicas"]


def test_what_the_schema_lets_in_is_decoded() -> None:
    text = b"""{"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"nodeManagerConfig": {"defaultVendor": "AMD"},
        "capacityConfig": {"maxResources": {"tflops": 100, "vram": "100Gi"}}, "later": 1}}"""
    pool = msgspec.json.decode(text, type=GPUPool)
    assert pool.spec.node_manager_config.default_vendor == "AMD"
    assert pool.spec.capacity_config is not None
    assert pool.spec.capacity_config.max_resources is not None
    assert pool.spec.capacity_config.max_resources.tflops == 100
