"""Running tasks side by side, and ending them for certain."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")


async def end(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and return when all have ended; their errors are theirs.

    ``asyncio.wait_for`` of Python 3.11, which the NATS client uses, swallows a cancellation that arrives together with its
    result. So a task is told again until it listens.
    """
    left: Iterable[asyncio.Task[Any]] = [task for task in tasks if task is not None and not task.done()]
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.2)


async def until_first(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until one task ends, raise its error if it failed, and end the others; they are ended on cancellation too."""
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        await end(*tasks)


async def within(timeout: float, work: Coroutine[Any, Any, T]) -> T:
    """Do some work of the NATS client that may take so many seconds.

    ``asyncio.timeout`` would not do: it cancels once, and of what swallows that (see :func:`end`) it would wait for the end.

    Raises:
        TimeoutError: It took longer, and was ended.
    """
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait([task], timeout=timeout)
    finally:
        if not task.done():
            await end(task)
    if not done:
        raise TimeoutError
    return task.result()


ROUNDS: Final = 16


async def breathe() -> None:
    """Let the event loop go round a few times in the middle of long work.

    A connection is read 64 KB a round, and answers to pings lie behind whatever was sent before: once is not enough where much
    is under way, and a connection that is not read for ten seconds is given up by both sides.
    """
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
