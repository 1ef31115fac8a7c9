"""``autoMigration``: which pods with native GPU limits become ours by themselves, and as what."""

import msgspec
import pytest

from consumers.mutator.mutate import Context, mutate
from consumers.mutator.options import read_options
from schemas.dialects import HamiConfig, TensorFusionDefaults

ON = "autoMigration: {enable: true}"
PREFIX = "tensor-fusion.ai/"
TEAMS = """
autoMigration:
  enable: true
  scope:
    includes:
      namespaceNames: [ml]
      namespaceSelector: {matchLabels: {team: research}}
      podSelector: {matchLabels: {move: "yes"}}
    excludes: {podSelector: {matchExpressions: [{key: keep, operator: Exists}]}}
"""
KNOWN = {"ml": {}, "lab": {"team": "research"}, "prod": {"team": "web"}}


def decide(text, *, namespace="ml", labels=None, annotations=None, **limits):
    limits = {key.replace("__", "/").replace("_com", ".com"): value for key, value in limits.items()}
    meta = {"labels": labels or {}, "annotations": annotations or {}}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    context = Context(
        pools=frozenset({"shared"}),
        options=read_options(text),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
        namespaces=KNOWN.get,
    )
    return mutate(msgspec.json.encode(pod), namespace, "u", context)


def dialect(text, **about):
    about = {"nvidia_com__gpu": "1"} | about
    request = decide(text, **about).request
    return request.dialect if request is not None else "left"


def test_a_pod_that_is_moved_gets_whole_gpus_in_tensorfusions_words():
    found = decide(ON, nvidia_com__gpu="2")
    assert (found.request.dialect, found.request.isolation, found.request.count) == ("tensorfusion", "shared", 2)
    assert (found.request.dedicated, found.request.vram_milli) == (True, 1000)
    written = {operation.path: operation.value for operation in found.patch if operation.op == "add"}
    assert written["/spec/schedulerName"] == "tensor-fusion-scheduler"
    assert written["/metadata/labels/tensor-fusion.ai~1enabled"] == "true"
    assert written["/metadata/annotations/tensor-fusion.ai~1isolation"] == "shared"


def test_what_it_says_of_its_isolation_stays():
    found = decide(ON, annotations={f"{PREFIX}isolation": "soft"}, nvidia_com__gpu="1")
    assert (found.request.dialect, found.request.isolation) == ("tensorfusion", "soft")


@pytest.mark.parametrize(
    ("text", "about", "expected"),
    [
        ("{}", {}, "hami"),
        ("autoMigration: {enable: false}", {}, "hami"),
        (ON, {"labels": {f"{PREFIX}enabled": "false"}}, "left"),
        (ON, {"labels": {"hami.io/webhook": "ignore"}}, "left"),
        (ON, {"nvidia_com__gpumem": "1000"}, "hami"),
        (ON, {"annotations": {"nvidia.com/use-gputype": "A100"}}, "hami"),
        (ON, {"nvidia_com__gpu": "0"}, "left"),
        (TEAMS, {"namespace": "ml"}, "tensorfusion"),
        (TEAMS, {"namespace": "lab"}, "tensorfusion"),
        (TEAMS, {"namespace": "prod"}, "hami"),
        (TEAMS, {"namespace": "prod", "labels": {"move": "yes"}}, "tensorfusion"),
        (TEAMS, {"namespace": "ml", "labels": {"keep": ""}}, "hami"),
        (TEAMS, {"namespace": "unknown"}, "hami"),
        (ON + "\n", {"namespace": "unknown"}, "tensorfusion"),
        ("autoMigration: {enable: true, scope: {excludes: {namespaceSelector: {}}}}", {"namespace": "unknown"}, "hami"),
        ("autoMigration: {enable: true, scope: {includes: {}}}", {}, "hami"),
    ],
)
def test_who_is_meant(text, about, expected):
    assert dialect(text, **about) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("autoMigration: {enabled: true}", "enabled"),
        ("autoMigration: {enable: true, scope: {include: {}}}", "include"),
        ("autoMigration: {enable: true, scope: {includes: {podSelector: {matchLabel: {a: b}}}}}", "matchLabel"),
    ],
)
def test_mistyped_rules_are_refused(text, says):
    with pytest.raises(ValueError, match=says):
        read_options(text)
