"""Whatever comes as a pod, it is patched, left, or refused with a sentence: never a crash, which would be a 500 to its user."""

import copy

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.mutator.mutate import Mutation, mutate
from schemas.dialects import RequestError
from schemas.dialects.hami import ANNOTATIONS as HAMI_ANNOTATIONS
from schemas.dialects.moved import MOVED
from schemas.dialects.tf_keys import ANNOTATIONS, ENABLED
from tests.unit.mutator.test_mutate import context

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 200)
    | st.sampled_from(["", "1", "-1", "16Gi", "1e400", "shared", "0,2", "é"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("a/é", max_size=3), inner, max_size=2)
)
texts = st.sampled_from(
    [
        "",
        "1",
        "0",
        "-1",
        "3",
        "16Gi",
        "100m",
        "true",
        "false",
        "soft",
        "hard",
        "NVIDIA",
        "A100",
        "a,b",
        "main",
        "[]",
        "1e9",
    ]
)
resources = st.dictionaries(
    st.sampled_from(
        ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority", "cpu", "memory"]
    ),
    texts,
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "a", "b"])},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": resources, "requests": resources}),
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES"]), "value": texts}),
            max_size=2,
        ),
        "securityContext": st.fixed_dictionaries({"privileged": st.booleans()}),
        "volumeMounts": st.just([{"name": "v", "mountPath": "/dev/shm"}]),
    },
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from([ENABLED, "app"]), texts),
                "annotations": st.dictionaries(
                    st.sampled_from([*ANNOTATIONS, *HAMI_ANNOTATIONS, MOVED]), texts, max_size=5
                ),
                "ownerReferences": st.just([{"kind": "ReplicaSet", "name": "r", "controller": True}]),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(containers, min_size=1, max_size=3, unique_by=lambda one: one["name"])},
            optional={
                "initContainers": st.lists(containers, max_size=1).map(
                    lambda found: [one | {"name": "init"} for one in found]
                ),
                "schedulerName": st.sampled_from(["default-scheduler", "hami-scheduler", "other"]),
                "nodeName": texts,
            },
        ),
    }
)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


@st.composite
def broken(draw):
    """A pod in which one part has been replaced by anything."""
    pod = copy.deepcopy(draw(pods))
    path = draw(st.sampled_from(sorted(places(pod), key=str)))
    if not path:
        return draw(values)
    where = pod
    for part in path[:-1]:
        where = where[part]
    where[path[-1]] = draw(values)
    return pod


def admit(pod):
    try:
        return mutate(msgspec.json.encode(pod), "ml", "u", context())
    except RequestError as error:
        return str(error)


@settings(deadline=None, derandomize=True, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(pods | broken())
def test_every_pod_has_an_answer(pod):
    found = admit(pod)
    assert isinstance(found, Mutation) or len(found) > 10


def test_a_pod_nested_without_end_has_an_answer_too():
    with pytest.raises(RequestError, match="no pod"):
        mutate(b'{"metadata": {}, "spec": {"containers": [{"name": "a"}], "x": ' + b"[" * 100_000, "ml", "u", context())
