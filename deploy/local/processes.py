"""Roles in processes of their own: started, awaited until ready, killed and started again."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

from deploy.local.server import LocalBusError

READY_LINE: Final = b"ready"
READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0


class RoleProcess:
    """One ``gpubus run ROLE`` beside us, with whatever further arguments the role takes."""

    def __init__(
        self, role: str, urls: list[str], *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [sys.executable, "-m", "deploy.cli.main", "run", role, "--nats", ",".join(urls), *arguments]
        self._role = role
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and return when it says that it is ready.

        Raises:
            LocalBusError: It ended, or was not ready in time; the message has its last words.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            "--exit-with-stdin",
            start_new_session=True,  # Ctrl-C is for us: we stop the roles in good order
            stdin=asyncio.subprocess.PIPE,  # closes when we die, however we die: nobody is left behind
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
        )
        assert self._process.stdout is not None  # noqa: S101
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            await self.kill()
            raise LocalBusError(f"{self._role} was not ready within {READY_TIMEOUT_S:g} s") from None
        if not line.startswith(READY_LINE):
            await self.stop()
            raise LocalBusError(f"{self._role} ended before it was ready; run `gpubus run {self._role}` to see why")

    @property
    def running(self) -> bool:
        """Whether it has been started, and not been ended by us."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Number of the process while it runs."""
        assert self._process is not None  # noqa: S101  started
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL, as a crash would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Let it finish what it has begun; killed if that takes too long."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
