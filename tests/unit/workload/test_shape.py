"""Templates and patches of any shape: refused where they are stated, and the cause of nobody else's trouble."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.mutator.clients import Clients
from consumers.mutator.context import Context
from consumers.mutator.service import Mutator, MutatorStatistics
from consumers.mutator.workers import LONGEST_TEMPLATE
from consumers.workload.service import WorkloadKeeper
from schemas.admission import Admit, Admitted
from schemas.dialects import RequestError
from schemas.event import Event
from schemas.kube.shape import check_part, check_template
from schemas.rollout import ComponentSpec, UpdatePolicy
from schemas.rollout_template import make_template
from tests.unit.mutator.test_remote import CLIENT, KEY, admitted, pod
from tests.unit.workload.test_render import render

EVIL: list[Any] = [
    {"template": "x"},
    {"template": None},
    {"metadata": "x"},
    {"metadata": {"labels": "x"}},
    {"metadata": {"labels": {"a": 1}}},
    {"metadata": {"annotations": ["a"]}},
    {"spec": "x"},
    {"spec": []},
    {"spec": {"containers": "x"}},
    {"spec": {"containers": None}},
    {"spec": {"containers": [None]}},
    {"spec": {"containers": {"a": "b"}}},
    {"spec": {"containers": [{"name": ["a"]}]}},
    {"spec": {"containers": [{"name": "vgpu"}, {"image": "i"}]}},
    {"spec": {"containers": [{"name": "vgpu", "env": ["x"]}]}},
    {"spec": {"containers": [{"name": "vgpu", "env": [{"name": [1]}]}]}},
    {"spec": {"containers": [{"name": "vgpu", "resources": "x"}]}},
    {"spec": {"containers": [{"name": "vgpu", "volumeMounts": [{"name": "a"}]}]}},
    {"spec": {"volumes": ["x"]}},
    {"spec": {"initContainers": [1]}},
    {"spec": {"initContainers": [{"image": "i"}]}},
    {"spec": {"affinity": "x"}},
    {"spec": {"tolerations": "x"}},
]


@pytest.mark.parametrize("stated", EVIL, ids=str)
def test_a_worker_s_template_is_refused_by_admission_and_by_the_keeper_alike(stated: Any) -> None:
    with pytest.raises(RequestError, match="workerPodTemplate"):
        render(workerPodTemplate=stated)
    with pytest.raises(RequestError, match=f"{KEY}worker-pod-template") as refused:
        admitted(pod({f"{KEY}worker-pod-template": msgspec.json.encode(stated).decode()}))
    assert refused.value.fix


def test_a_template_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(RequestError, match="is over 8192 characters"):
        admitted(pod({f"{KEY}worker-pod-template": "x" * (LONGEST_TEMPLATE + 1)}))


PATCHES = [("patchToPod", one) for one in (*EVIL, {"spec": {"containers": [{"image": "sidecar"}]}})]
PATCHES += [
    ("patchToContainer", one)
    for one in ({"env": "x"}, {"env": [1]}, {"env": [{"value": "1"}]}, {"volumeMounts": "x"}, {"resources": "x"})
]


def record(client: dict[str, Any], seq: int = 1) -> Record:
    spec = ComponentSpec(
        pool="p", component="client", template=make_template(client, {"NVIDIA": "1"}, {}), policy=UpdatePolicy()
    )
    event = Event(
        id=str(seq), source="/t", type="gpubus.state.component.v1", subject="p", time=datetime.now(UTC), data=spec
    )
    return Record(subjects.state("component", "p", "client"), seq, codec.encode(event), deleted=False)


@pytest.mark.parametrize(("field", "patch"), PATCHES, ids=str)
def test_a_pool_s_patch_that_is_none_is_not_taken_and_the_last_good_one_holds(field: str, patch: Any) -> None:
    clients = Clients()
    clients.apply(record({"operatorEndpoint": "https://good"}))
    with pytest.raises(UndecodableError, match=f"pool p: spec.componentConfig.client.{field}"):
        clients.apply(record({"operatorEndpoint": "https://bad", field: patch}, 2))
    found = clients.get("p", "NVIDIA")
    assert found is not None
    assert found.endpoint == "https://good"


def test_what_may_be_merged_is_taken() -> None:
    part = {"env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "1"}}, "imagePullPolicy": "Always"}
    check_part(part, "f")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [part], "hostPID": True, "volumes": None}}
    check_template({"template": template}, "f")
    check_template(template, "f")
    check_template({}, "f")
    client = msgspec.structs.replace(CLIENT, pod_patch={"spec": {"containers": [{"name": "main", **part}]}}, patch=part)
    changed, _ = admitted(pod(), client)
    assert {"name": "A", "value": "1"} in changed["spec"]["containers"][0]["env"]


class _Sick:
    """Of two workloads, one cannot be kept for a reason that nobody has thought of."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.failed: dict[str, str] = {}

    async def keep(self, key: tuple[str, str]) -> str:
        if key[1] == "bad":
            raise AttributeError("'str' object has no attribute 'get'")
        self.kept.append(key[1])
        return ""

    async def fail(self, key: tuple[str, str], problem: str) -> None:
        self.failed[key[1]] = problem


def test_one_workload_that_cannot_be_kept_says_so_and_the_others_are_kept() -> None:
    class _View:
        def workload(self, _: object) -> object:
            return object()

    async def scenario() -> None:
        role = object.__new__(WorkloadKeeper)
        sick = _Sick()
        vars(role).update(
            _keeper=sick, view=_View(), _slots=asyncio.Semaphore(2), _failures={}, _failed=0, _changed=set(),
            _look_at=lambda key, _: again.append(key),
        )  # fmt: skip
        again: list[tuple[str, str]] = []
        await asyncio.gather(*(role._look(("ns", name)) for name in ("bad", "good")))
        assert (sick.kept, again) == (["good"], [("ns", "bad")])
        assert sick.failed == {"bad": "AttributeError: 'str' object has no attribute 'get'"}

    asyncio.run(scenario())


def test_a_pod_over_which_admission_stumbles_is_refused_at_once() -> None:
    def context() -> Context:
        raise KeyError("name")

    mutator = object.__new__(Mutator)
    vars(mutator).update(_context=context, _makers=None, statistics=MutatorStatistics())
    found = mutator._admit_at_once(Admit(uid="u", namespace="ns", pod=msgspec.Raw(b"{}")))
    assert isinstance(found, Admitted)
    assert (found.allowed, found.code, mutator.statistics.refused) == (False, 422, 1)
    assert "KeyError: 'name'" in found.message
