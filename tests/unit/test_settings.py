"""What roles read from their environment."""

import pytest

from deploy.local.monitoring import SettingError
from deploy.local.settings import PREEMPTION, SCHEDULER_CONFIG, preemption, scheduler_config


@pytest.mark.parametrize(("written", "scope"), [("", "cluster"), (" namespace ", "namespace"), ("never", "never")])
def test_whose_pods_may_be_evicted(written: str, scope: str, monkeypatch) -> None:
    monkeypatch.setenv(PREEMPTION, written)
    assert preemption() == scope


def test_a_scope_that_is_none_is_refused_with_those_that_are(monkeypatch) -> None:
    monkeypatch.setenv(PREEMPTION, "true")
    with pytest.raises(SettingError, match="GPUBUS_PREEMPTION is 'true': write never, namespace, cluster"):
        preemption()


@pytest.mark.parametrize(
    ("written", "key"), [("", None), ("configmap:sys/tf-config/a.yaml", ("sys", "tf-config", "a.yaml"))]
)
def test_where_the_scheduler_is_configured(written: str, key: tuple[str, str, str] | None, monkeypatch) -> None:
    monkeypatch.setenv(SCHEDULER_CONFIG, written)
    assert scheduler_config() == key


@pytest.mark.parametrize(
    "written", ["sys/tf-config/a.yaml", "configmap:tf-config/a.yaml", "configmap://a.yaml", "/etc/a.yaml"]
)
def test_a_place_that_is_no_key_of_a_config_map_is_refused(written: str, monkeypatch) -> None:
    monkeypatch.setenv(SCHEDULER_CONFIG, written)
    with pytest.raises(SettingError, match=r"GPUBUS_SCHEDULER_CONFIG is .*: write configmap:NAMESPACE/NAME/KEY"):
        scheduler_config()
