"""One MPS control daemon for the GPUs of a node that shares them by MPS: started, watched, started again, ended."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger("gpubus.agent")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""A daemon that ran this long before it ended is started again without delay."""

STOP_S: Final = 5.0


class MpsControl:
    """Supervises ``nvidia-cuda-mps-control``.

    Args:
        program: The program.
        directory: Where its pipes and logs are; containers get ``pipe`` as ``CUDA_MPS_PIPE_DIRECTORY``.
        gpus: Waits until the driver answers, and returns the UUIDs of the GPUs it is for.
        changed: Called with whether it runs, whenever that changes.
    """

    def __init__(
        self,
        program: str,
        directory: Path,
        gpus: Callable[[], Awaitable[Sequence[str]]],
        changed: Callable[[bool], None],
    ) -> None:
        self._program = program
        self._pipe = directory / "pipe"
        self._log = directory / "log"
        self._gpus = gpus
        self._changed = changed
        self.starts = 0
        """How often it has been started."""

    async def run(self) -> None:
        """Keep it running until cancelled, then end it.

        It sees the GPUs that are there when it starts, and none without a driver: so each start waits for that. Where all GPUs
        are cut there is nothing to start.
        """
        pause = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            gpus = await self._gpus()
            if not gpus:
                await asyncio.sleep(LONGEST_PAUSE_S)
                continue
            started = loop.time()
            try:
                process = await self._start(gpus)
            except OSError as error:
                log.error("%s cannot be started: %s", self._program, error.strerror or error)  # noqa: TRY400  no bug of ours
            else:
                self._changed(True)  # noqa: FBT003
                try:
                    code = await process.wait()
                finally:
                    self._changed(False)  # noqa: FBT003
                    await _end(process)
                log.warning("%s ended with code %s", self._program, code)
            pause = FIRST_PAUSE_S if loop.time() - started > STEADY_S else min(2 * pause, LONGEST_PAUSE_S)
            await asyncio.sleep(pause)

    async def _start(self, gpus: Sequence[str]) -> asyncio.subprocess.Process:
        for directory in (self._pipe, self._log):
            directory.mkdir(parents=True, exist_ok=True)
        self._pipe.chmod(0o777)  # clients of any user connect through it
        self.starts += 1
        return await asyncio.create_subprocess_exec(
            self._program,
            "-f",  # in the foreground: a child that ends is a child that is missed
            stdin=asyncio.subprocess.DEVNULL,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": ",".join(gpus),
                "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe),
                "CUDA_MPS_LOG_DIRECTORY": str(self._log),
            },
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
