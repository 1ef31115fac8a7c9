"""Which pods a disruption budget covers, as pods and budgets come, change and go in any order."""

import hypothesis.strategies as st
from hypothesis import given

from producers.watcher.budgets import Budgets
from schemas.kube.base import LabelSelector, SelectorTerm
from schemas.kube.core import KubePod, ObjectMeta, PodSpec, PodStatus
from schemas.kube.policy import BudgetSpec, BudgetStatus, PodDisruptionBudget
from schemas.preemption import DisruptionBudget


def budget(version: int, selector: LabelSelector | None, allowed: int = 1, observed: int = 1) -> PodDisruptionBudget:
    meta = ObjectMeta(name="careful", namespace="default", resource_version=str(version), generation=1)
    return PodDisruptionBudget(meta, BudgetSpec(selector), BudgetStatus(allowed, observed))


def pod(
    version: int, uid: str, app: str, node: str = "n", *, phase: str = "Running", space: str = "default"
) -> KubePod:
    meta = ObjectMeta(name=f"pod-{uid}", namespace=space, uid=uid, resource_version=str(version), labels={"app": app})
    return KubePod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase=phase))


TRAINING = LabelSelector(match_labels={"app": "training"})
KEY = ("default", "careful")


def test_only_pods_that_run_in_its_namespace_and_match_are_covered() -> None:
    told: list[tuple[str, ...]] = []
    budgets = Budgets(told.append)
    budgets.put(budget(5, TRAINING, allowed=2))
    for item in (
        pod(6, "a", "training"), pod(7, "b", "training"), pod(8, "c", "serving"), pod(9, "d", "training", node=""),
        pod(10, "e", "training", phase="Failed"), pod(11, "f", "training", space="other"),
    ):  # fmt: skip
        budgets.on_pod(item)
    assert budgets.project(KEY) == DisruptionBudget(namespace="default", name="careful", allowed=2, pods=("a", "b"))
    assert told == [KEY] * 3  # the budget, and the two pods that it covers
    assert budgets.version(KEY) == 7
    budgets.on_pod(pod(12, "a", "serving"))
    budgets.on_pod_gone("default", "pod-b", 13)
    left = budgets.project(KEY)
    assert left is not None
    assert (left.pods, budgets.version(KEY)) == ((), 13)
    budgets.gone("default", "careful", 14)
    assert budgets.project(KEY) is None
    assert (budgets.version(KEY), told[-1]) == (14, KEY)


def test_a_budget_that_its_controller_has_not_seen_allows_nothing() -> None:
    assert budget(1, TRAINING, allowed=3, observed=0).allowed == 0
    assert budget(1, TRAINING, allowed=3, observed=1).allowed == 3


def test_no_selector_covers_nothing_and_an_empty_one_everything() -> None:
    for selector, covered in ((None, ()), (LabelSelector(), ("a",))):
        budgets = Budgets(lambda _: None)
        budgets.on_pod(pod(1, "a", "training"))
        budgets.put(budget(2, selector))
        told = budgets.project(KEY)
        assert told is not None
        assert told.pods == covered


apps = st.sampled_from(["training", "serving"])
steps = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(apps, st.sampled_from(["", "n"])), apps))


@given(steps)
def test_whoever_is_told_of_changes_only_knows_what_is(taken: list) -> None:
    changed = [False]
    budgets = Budgets(lambda _: changed.__setitem__(0, True))
    there: dict[str, KubePod] = {}
    seen: DisruptionBudget | None = None
    selects = "training"
    for version, (uid, pod_is, app) in enumerate(taken, start=1):
        if pod_is is None:
            there.pop(uid, None)
            budgets.on_pod_gone("default", f"pod-{uid}", version)
        else:
            there[uid] = pod(version, uid, pod_is[0], pod_is[1])
            budgets.on_pod(there[uid])
        if version == 1 or app != selects:
            selects = app
            terms = (SelectorTerm(key="app", operator="In", values=(app,)),)
            budgets.put(budget(version, LabelSelector(match_expressions=terms)))
        if changed[0]:
            changed[0], seen = False, budgets.project(KEY)
        right = sorted(u for u, one in there.items() if one.spec.node_name and one.metadata.labels["app"] == selects)
        assert seen is not None
        assert list(seen.pods) == right
