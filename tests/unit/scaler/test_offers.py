"""The file of nodes that can be had, what claims say, and what pools require of new nodes."""

from pathlib import Path

import msgspec
import pytest

from consumers.scaler.offers import OffersError, claim_spec, offer_of, read_offers, satisfies
from consumers.scaler.packing import Room, pack, suits
from schemas.capacity import Offer, Shape
from schemas.cluster import Oversubscription
from schemas.dialects.text import RequestError
from schemas.kube.nodes import GPUNodeClaimSpec
from schemas.kube.pools import Requirement

PLAIN = Oversubscription()
GIB = 2**30
FILE = """
- instanceType: p4d.24xlarge
  gpuModel: A100-SXM4-40GB
  tflops: 312
  vram: 40Gi
  gpus: 8
  cpu: 96
  memory: 1152Gi
  region: us-east-1
  zones: [us-east-1a, us-east-1b]
  costPerHour: $32.77
- {instanceType: mystery, gpuModel: X1, gpus: 1, tflops: "1.5", vram: 8G, costPerHour: 0.5, capacityType: Spot}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "offers.yaml"
    path.write_text(text)
    return path


def test_a_file_of_offers_is_read(tmp_path):
    first, *others = read_offers(written(tmp_path, FILE))
    assert [one.key for one in others] == [
        "p4d.24xlarge/us-east-1/us-east-1a/OnDemand", "p4d.24xlarge/us-east-1/us-east-1b/OnDemand",
    ]  # fmt: skip
    assert (first.tflops_milli, first.vram_bytes, first.microdollars) == (1500, 8 * 10**9, 500_000)
    assert (others[0].size.tflops_milli, others[0].microdollars, others[0].memory_bytes) == (
        8 * 312_000, 32_770_000, 1152 * GIB,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "write a YAML list"),
        ("- {instanceType: a, gpuModel: X1, gpus: 1, costPerHour: 1}", "entry 1: gpuModel 'X1' is not in the catalogue"),
        ("- {instanceType: a, gpuModel: X1, gpus: 0, costPerHour: 1}", "entry 1: Expected `int` >= 1 - at `$.gpus`"),
        ("- {instanceType: a, gpuModel: X1, gpus: 1, price: 1}", "entry 1: Object contains unknown field `price`"),
        ("- {instanceType: a, gpuModel: X1, gpus: 1, tflops: 1, vram: lots, costPerHour: 1}", "vram: 'lots'"),
        ("- {instanceType: a, gpuModel: A100, gpus: 1, tflops: '0', vram: 1Gi, costPerHour: 1}", "tflops '0' is no GPU's"),
        ("- {instanceType: a, gpuModel: X1, gpus: 1, tflops: 1, vram: '0', costPerHour: 1}", "vram '0' is no GPU's"),
        ("- {instanceType: a, gpuModel: X1, gpus: 1, tflops: 1, vram: 1Gi, costPerHour: dear}", "costPerHour: 'dear'"),
        (2 * "- {instanceType: a, gpuModel: X1, gpus: 1, tflops: 1, vram: 1Gi, costPerHour: 1}\n", "entry 2: a///OnDemand is"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_with_field_value_and_fix(tmp_path, text, words):
    with pytest.raises(OffersError) as refused:
        read_offers(written(tmp_path, text))
    assert words in str(refused.value)


def test_a_claim_says_what_it_is_for(tmp_path):
    for offer in read_offers(written(tmp_path, FILE)):
        spec = msgspec.convert(claim_spec(offer, "pool-0", "gpu"), GPUNodeClaimSpec)
        assert offer_of(spec, [offer]) == offer
        alone = offer_of(spec, [])  # the file no longer lists it
        assert (alone.size, alone.model, alone.key) == (offer.size, offer.model, offer.key)
    with pytest.raises(RequestError, match="state gpuDeviceOffered"):
        offer_of(GPUNodeClaimSpec(instance_type="a"), [])


OFFER = Offer(
    instance_type="g", gpus=4, model="T4", tflops_milli=65_000, vram_bytes=16 * GIB, zone="a", capacity_type="Spot",
    labels={"karpenter.k8s.aws/instance-gpu-count": "4"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("node.kubernetes.io/instance-type", "In", ("g", "h"), True),
        ("node.kubernetes.io/instance-type", "In", ("h",), False),
        ("karpenter.sh/capacity-type", "In", ("spot",), True),
        ("karpenter.sh/capacity-type", "In", ("on-demand",), False),
        ("topology.kubernetes.io/region", "Exists", (), False),
        ("topology.kubernetes.io/zone", "Exists", (), True),
        ("topology.kubernetes.io/region", "DoesNotExist", (), True),
        ("karpenter.k8s.aws/instance-gpu-count", "Gt", ("3",), True),
        ("karpenter.k8s.aws/instance-gpu-count", "Lt", ("4",), False),
        ("unknown", "Gt", ("3",), False),
    ],
)
def test_requirements_of_a_pool(key, operator, values, holds):
    assert satisfies(OFFER, [Requirement(key=key, operator=operator, values=values)]) == holds


def test_a_node_takes_what_fits_on_its_gpus():
    half = Shape(gpus=1, compute_milli=500, vram_bytes=8 * GIB)
    assert pack([(half, 9)], [Room(OFFER, PLAIN)]) == [(half, 1)]
    alone = Shape(gpus=2, dedicated=True)
    assert pack([(half, 1), (alone, 2)], [Room(OFFER, PLAIN)]) == [(alone, 1)]
    assert not suits(Shape(gpus=1, models=("A100",)), OFFER, PLAIN)
    assert not suits(Shape(gpus=8), OFFER, PLAIN)
    assert not suits(Shape(gpus=1, other="a topology"), OFFER, PLAIN)
    sold = Oversubscription(tflops_ratio=500, host_memory=50)
    tenth = Shape(gpus=1, compute_milli=250, vram_bytes=GIB)
    assert pack([(tenth, 90)], [Room(OFFER, sold)]) == [(tenth, 90 - 4 * 16)]  # twenty by compute, sixteen by VRAM
