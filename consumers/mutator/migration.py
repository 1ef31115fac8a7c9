"""``autoMigration``: which pods of the native device plugin become ours by themselves. Pure.

Source: TensorFusion's ``dynamicConfig.autoMigration``. A pod that speaks for itself is left alone: one with the label ``enabled``
of either value, one in HAMi's words, and one that asks HAMi's webhook to ignore it. Without ``includes`` every other pod with
native GPU limits is meant; ``excludes`` count first.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from schemas.dialects import HamiConfig, PodSpecView, hami
from schemas.dialects import tf_keys as keys
from schemas.kube.base import LabelSelector
from schemas.kube.selectors import selects_labels

_IGNORE: Final = "hami.io/webhook"


class Selector(LabelSelector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A label selector whose mistyped key does not make it select everything."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Pods that one of these matches; none of them matches nothing."""

    namespace_names: tuple[str, ...] = ()
    namespace_selector: Selector | None = None
    pod_selector: Selector | None = None


class Scope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pods are meant; without ``includes`` all that ``excludes`` does not match."""

    includes: Rules | None = None
    excludes: Rules | None = None


class AutoMigration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dynamicConfig.autoMigration``."""

    enable: bool = False
    scope: Scope = Scope()


def migrated(
    pod: PodSpecView,
    rules: AutoMigration,
    namespace: Mapping[str, str] | None,
    native: Iterable[str],
    config: HamiConfig,
) -> PodSpecView:
    """Return a pod that becomes ours as one of TensorFusion's, of whole GPUs unless it says otherwise; any other as it is.

    Args:
        pod: The pod, with its namespace.
        rules: What operators have set.
        namespace: Labels of its namespace; None while they are not known: then a rule that asks for them moves nothing.
        native: Resources of native device plugins.
        config: HAMi's words.
    """
    if not rules.enable or speaks(pod, config) or not asks(pod, native):
        return pod
    scope = rules.scope
    if scope.excludes is not None and _matches(scope.excludes, pod, namespace, unknown=True):
        return pod
    if scope.includes is not None and not _matches(scope.includes, pod, namespace, unknown=False):
        return pod
    return msgspec.structs.replace(
        pod,
        labels={**pod.labels, keys.ENABLED: "true"},
        annotations={keys.ISOLATION: "shared", **pod.annotations},
    )


def speaks(pod: PodSpecView, config: HamiConfig) -> bool:
    """Return whether a pod says itself, in either dialect, what is to become of it."""
    return (
        keys.ENABLED in pod.labels
        or pod.labels.get(_IGNORE) == "ignore"
        or any(pod.annotation(key) for key in keys.ASKING)
        or any(key in pod.annotations for key in hami.ANNOTATIONS)
        or any(
            container.resource(name) is not None
            for container in (*pod.init_containers, *pod.containers)
            for name in config.own_names
        )
    )


def asks(pod: PodSpecView, native: Iterable[str]) -> bool:
    """Return whether a container asks for GPUs of a native device plugin."""
    amounts = (container.resource(name) for name in native for container in pod.containers)
    return any(amount not in (None, "0") for amount in amounts)


def _matches(rules: Rules, pod: PodSpecView, namespace: Mapping[str, str] | None, *, unknown: bool) -> bool:
    if pod.namespace in rules.namespace_names:
        return True
    if rules.pod_selector is not None and selects_labels(rules.pod_selector, pod.labels):
        return True
    if rules.namespace_selector is None:
        return False
    return unknown if namespace is None else selects_labels(rules.namespace_selector, namespace)
