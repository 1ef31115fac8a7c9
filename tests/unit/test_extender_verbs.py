"""What kube-scheduler is answered, given what allocators offer; the verbs against real ones are in tests/integration."""

import json

import pytest

from producers.gateway.extender import Extender
from schemas.extender import ExtenderBindingArgs, Offer

NODES = ("a", "b", "c")


class Allocators:
    """Offers the same whatever is asked."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer

    async def filter(self, _: bytes) -> Offer:
        return self.offer

    async def prioritize(self, _: bytes) -> Offer:
        return self.offer

    async def bind(self, _: ExtenderBindingArgs) -> str:
        return ""


async def ask(extender: Extender, verb: str, spec: dict) -> tuple[int, object]:
    body = json.dumps({"Pod": {"metadata": {"uid": "u"}, "spec": spec}, "NodeNames": NODES}).encode()

    async def receive() -> dict:
        return {"type": "http.request", "body": body, "more_body": False}

    said = await extender.answer({"type": "http", "method": "POST", "path": f"/extender/{verb}"}, receive)
    return said.status, json.loads(said.body)


def term(**words: object) -> dict:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, **words}


@pytest.mark.parametrize(
    ("spec", "weighs"),
    [
        ({}, False),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term()]}}}, False),
        ({"topologySpreadConstraints": [term(maxSkew=1, whenUnsatisfiable="DoNotSchedule")]}, False),
        ({"topologySpreadConstraints": [term(maxSkew=1, whenUnsatisfiable="ScheduleAnyway")]}, True),
        ({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
    ],
)
async def test_kube_scheduler_weighs_nodes_where_the_pod_says_how(spec: dict, weighs: bool) -> None:
    extender = Extender(Allocators(Offer(refused={"Full": ("c",)}, best=("b", "a"))))
    _, found = await ask(extender, "filter", spec)
    assert found["NodeNames"] == (["a", "b"] if weighs else ["b"])
    _, scores = await ask(extender, "prioritize", spec)
    assert scores == [{"Host": "b", "Score": 10}, {"Host": "a", "Score": 9}]


async def test_where_no_node_fits_each_says_why() -> None:
    _, found = await ask(Extender(Allocators(Offer(refused={"Full": NODES}))), "filter", {})
    assert found["NodeNames"] == []
    assert found["FailedAndUnresolvableNodes"] == dict.fromkeys(NODES, "Full")
