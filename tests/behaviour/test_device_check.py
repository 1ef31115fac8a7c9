"""The check for machines with a GPU holds on a library that stands in for one, so that it works where there is one."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="install the extra `agent`")

SCRIPT = Path(__file__).parents[1] / "device" / "check.sh"


@pytest.mark.slow
async def test_the_device_check_holds_on_the_stand_in() -> None:
    process = await asyncio.create_subprocess_exec(
        "bash",
        str(SCRIPT),
        "--stand-in",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHON": sys.executable},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert b"all checks hold" in output
