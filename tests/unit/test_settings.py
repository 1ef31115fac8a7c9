"""What roles read from their environment."""

import pytest

from deploy.local.monitoring import SettingError
from deploy.local.settings import PREEMPTION, preemption


@pytest.mark.parametrize(("written", "scope"), [("", "cluster"), (" namespace ", "namespace"), ("never", "never")])
def test_whose_pods_may_be_evicted(written: str, scope: str, monkeypatch) -> None:
    monkeypatch.setenv(PREEMPTION, written)
    assert preemption() == scope


def test_a_scope_that_is_none_is_refused_with_those_that_are(monkeypatch) -> None:
    monkeypatch.setenv(PREEMPTION, "true")
    with pytest.raises(SettingError, match="GPUBUS_PREEMPTION is 'true': write never, namespace, cluster"):
        preemption()
