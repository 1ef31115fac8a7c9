"""One MPS control daemon for the GPUs of a node that shares them by MPS: started, watched, started again, ended."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
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
        gpus: Returns the UUIDs of the GPUs it is for.
        changed: Called with whether it runs, whenever that changes.
    """

    def __init__(
        self, program: str, directory: Path, gpus: Callable[[], Sequence[str]], changed: Callable[[bool], None]
    ) -> None:
        self._program = program
        self._pipe = directory / "pipe"
        self._log = directory / "log"
        self._gpus = gpus
        self._changed = changed
        self.starts = 0
        """How often it has been started."""

    async def run(self) -> None:
        """Keep it running until cancelled, then end it."""
        pause = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                process = await self._start()
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

    async def _start(self) -> asyncio.subprocess.Process:
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
                "CUDA_VISIBLE_DEVICES": ",".join(self._gpus()),
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
