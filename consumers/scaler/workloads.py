"""The workloads whose requests something may change: the fold of what is set. No I/O."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GpuResources
from schemas.event import utc
from schemas.kube.autoscaling import AutoScaling, parse_autoscaling
from schemas.kube.defaults import Settings, read_resources
from schemas.kube.resources import CustomResource
from schemas.kube.selectors import selects_labels
from schemas.kube.workloads import AutoScalingConfig
from schemas.pod import Qos
from schemas.scaling import Unit

STATE_FILTERS = (
    "gpubus.state.config.tensorfusionworkloads.*.*",
    "gpubus.state.config.gpupools.*.*",
    "gpubus.state.config.schedulingconfigtemplates.*.*",
    "gpubus.state.use.*.*",
)

Key = tuple[str, str]
"""Namespace and name of a workload."""

DEFAULT_HISTORY_S = 7200


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, and what it says of its requests.

    Attributes:
        stated: What it states per GPU; advice is bounded by multiples of it.
        refusal: Why what it says cannot be followed; empty if it can.
    """

    key: Key
    uid: str
    created_at: datetime
    scaling: AutoScaling
    stated: GpuResources
    qos: Qos
    refusal: str = ""

    @property
    def unit(self) -> Unit:
        """What it states compute in."""
        return "percent" if self.stated.requests.compute_milli else "tflops"

    @property
    def history_s(self) -> int:
        """How much of what was recorded is read at first."""
        return self.scaling.auto.history_s if self.scaling.auto is not None else DEFAULT_HISTORY_S


class Workloads:
    """All workloads; ``changed`` is called when any of them is another one now."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._settings = Settings(lambda *_: changed())
        self.remembered: set[Key] = set()
        """Workloads that have a record on the bus."""

    def known(self) -> list[Key]:
        """Return all workloads that are not being deleted."""
        return [key for key in sorted(self._settings.workloads.items) if self._settings.workload(*key) is not None]

    def interval_s(self, key: Key) -> int:
        """Return how often a workload is to be looked at, 0 for never; one that is refused is looked at to say so."""
        asked = self.asked(key)
        return 0 if asked is None else asked.scaling.interval_s or (60 if asked.refusal else 0)

    def asked(self, key: Key) -> Asked | None:
        """Return what is known of a workload; None if there is none."""
        item = self._settings.workload(*key)
        if item is None:
            return None
        config = item.spec.auto_scaling_config or self._by_rule(key, item.metadata.labels)
        scaling, stated, refusal = AutoScaling(), GpuResources(), ""
        try:
            stated = read_resources(item.spec.resources, "spec.resources")
            scaling = parse_autoscaling(config)
        except RequestError as error:
            refusal = str(error) if config is not None else ""
        created = item.metadata.creation_timestamp
        return Asked(
            key=key,
            uid=item.metadata.uid,
            created_at=datetime.fromisoformat(created) if created else utc(0),
            scaling=scaling,
            stated=stated,
            qos=item.spec.qos if isinstance(item.spec.qos, str) else self._default_qos(key),
            refusal=refusal,
        )

    def _by_rule(self, key: Key, labels: dict[str, str]) -> AutoScalingConfig | None:
        """Return what the first of the pool's ``verticalScalingRules`` that matches says of a workload that says nothing."""
        pool = self._settings.pools.items.get(("", self._settings.workload_pool(*key)))
        name = pool.spec.scheduling_config_template if pool is not None else ""
        template = self._settings.templates.items.get(("", name))
        for rule in template.spec.vertical_scaling_rules if template is not None else ():
            if rule.selector is None or selects_labels(rule.selector, labels):
                return rule.auto_scaling
        return None

    def _default_qos(self, key: Key) -> Qos:
        pool = self._settings.pools.items.get(("", self._settings.workload_pool(*key)))
        config = pool.spec.qos_config if pool is not None else None
        return config.default_qos if config is not None and isinstance(config.default_qos, str) else "medium"

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE.

        Raises:
            UndecodableError: It cannot be read; what was known stays.
        """
        try:
            _, kind, *names = subjects.names(record.subject)
            if kind == "use":
                key = (names[0], names[1])
                (self.remembered.discard if record.deleted else self.remembered.add)(key)
                return
            data = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
            self._settings.apply(names[0], names[1], names[2], data)
        except (ValueError, IndexError, msgspec.ValidationError) as error:
            raise UndecodableError(str(error)) from None
