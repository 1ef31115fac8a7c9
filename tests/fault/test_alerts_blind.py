"""Nobody may be told that an alert is over because metrics are not there: the recorder killed, the bus away, both at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus import codec
from bus.connection import Bus
from bus.errors import BusError
from bus.follower import Follower, Record
from bus.streams import ALERT, STATE
from bus.tasks import end
from consumers.alerter.streaks import FAILING_ALERT
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from schemas.alert import Alert, AlertNotice, RuleState
from tests.behaviour.test_alerts import Gpu, rules
from tests.conftest import eventually
from tests.stores.greptime import GreptimeStandIn

pytestmark = [pytest.mark.fault, pytest.mark.slow]

WINDOW_S = 2


class Watch:
    """What is told of the rule, and how far it is."""

    def __init__(self, bus: Bus) -> None:
        self.told: list[Alert] = []
        self.states: list[RuleState] = []
        self.followers = [
            Follower(bus, ALERT, ["gpubus.alert.>"], self._on_notice),
            Follower(bus, STATE, ["gpubus.state.alert.*"], self._on_state),
        ]

    def _on_notice(self, record: Record) -> None:
        found = codec.decode_as(AlertNotice, record.payload).data.alerts
        self.told += [alert for alert in found if alert.labels["alertname"] != FAILING_ALERT]

    def _on_state(self, record: Record) -> None:
        self.states.append(codec.decode_as(RuleState, record.payload).data)

    @property
    def count(self) -> int:
        return self.states[-1].streaks[0].count if self.states and self.states[-1].streaks else 0

    @property
    def statuses(self) -> list[str]:
        return [alert.status for alert in self.told]

    async def went_on(self, count: int) -> None:
        """Wait until two more evaluations have found the alert."""
        await eventually(lambda: self.states[-1].failures == 0 and self.count >= count + 2, 60)


async def say(gpu: Gpu) -> None:
    while True:
        with contextlib.suppress(BusError, TimeoutError):
            await gpu.run()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def hot(bus: Bus, server: LocalServer, directory: Path) -> AsyncIterator[tuple[Gpu, Watch, list[RoleProcess]]]:
    """A GPU that is too hot, an alert that fires, and the processes of recorder and alerter, to be killed."""
    watch, gpu = Watch(bus), Gpu(bus)
    gpu.celsius = 95
    async with GreptimeStandIn() as stand_in:
        path = rules(directory / "rules.yaml", f"{WINDOW_S}s", consecutive_count=2)
        environment = {"GPUBUS_METRICS": stand_in.url, "GPUBUS_ALERT_RULES": str(path)}
        roles = [RoleProcess(role, [server.url], environment=environment) for role in ("recorder", "alerter")]
        saying = asyncio.create_task(say(gpu))
        try:
            for follower in watch.followers:
                await follower.start()
            for role in roles:
                await role.start()
            await eventually(lambda: "firing" in watch.statuses, 60)
            yield gpu, watch, roles
        finally:
            await end(saying)
            for role in roles:
                await role.stop()
            for follower in watch.followers:
                await follower.stop()


async def test_a_recorder_or_a_bus_that_is_away_for_longer_than_the_window_ends_no_alert(
    bus: Bus, server: LocalServer, tmp_path: Path
) -> None:
    async with hot(bus, server, tmp_path) as (gpu, watch, (recorder, alerter)):
        before = watch.count
        await alerter.kill()
        await recorder.kill()
        await asyncio.sleep(WINDOW_S + 1)  # until the window in the store is empty
        await alerter.start()
        await eventually(lambda: "is not recorded yet" in watch.states[-1].error, 30)
        await recorder.start()
        await watch.went_on(before)

        before = watch.count
        server.kill()
        await alerter.kill()
        await recorder.kill()
        await asyncio.sleep(WINDOW_S + 1)
        await server.start()
        await alerter.start()
        await recorder.start()
        await watch.went_on(before)

        assert set(watch.statuses) == {"firing"}  # nothing was over until now
        assert len({alert.starts_at for alert in watch.told}) == 1
        gpu.celsius = 60
        await eventually(lambda: "resolved" in watch.statuses, 60)
        assert watch.statuses.count("resolved") == 1
