"""One thread in which driver calls are made, and a clock on the call that is under way.

A call into a broken driver may never return and cannot be cancelled. So calls are made in a thread of their own, one at a
time, and who waits for them gives up when a single call has taken longer than its deadline. The thread stays stuck in the
call; the lane says so until it comes back, and takes no more work meanwhile. The process goes on.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TICK_S: Final = 0.01


class HungError(Exception):
    """A driver call does not return."""

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(f"{call} has not returned for {seconds:.1f} s")
        self.call = call
        self.seconds = seconds


class _AbandonedError(BaseException):
    """Unwinds a job that nobody waits for any more."""


class _Job:
    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.abandoned = False
        self.ended = threading.Event()


class Lane:
    """Runs jobs that make driver calls, one at a time.

    Args:
        name: Name of the thread.
        deadline_s: How long one driver call may take, in seconds.
    """

    def __init__(self, name: str, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._turn = asyncio.Lock()
        self._job: _Job | None = None
        self._call: tuple[str, float] | None = None
        # A daemon: a thread that is stuck in a driver must not keep the process from ending.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def hung(self) -> bool:
        """Whether the thread is stuck in a call that was given up."""
        return self._job is not None and self._job.abandoned and not self._job.ended.is_set()

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the lane, whose driver calls all go through :meth:`call`, and return its result.

        Raises:
            HungError: One of its driver calls takes longer than allowed, or an earlier one has not come back yet.
        """
        async with self._turn:
            if self.hung:
                raise self._stuck()
            job = self._job = _Job(work, asyncio.get_running_loop())
            self._jobs.put(job)
            try:
                while not job.future.done():
                    await asyncio.wait([job.future], timeout=max(self._left(), _TICK_S))
                    if not job.future.done() and self._left() <= 0:
                        raise self._stuck()
            finally:
                job.abandoned = not job.future.done()
            result: T = job.future.result()
            return result

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Make one driver call, under the deadline; to be used inside jobs only.

        A job that was given up ends at its next call: what a late answer changed in the driver is still taken note of.
        """
        if self._job is not None and self._job.abandoned:
            raise _AbandonedError
        self._call = (function.__name__, time.monotonic())
        try:
            return function(*arguments)
        finally:
            self._call = None

    def close(self) -> None:
        """Let the thread end as soon as it can."""
        self._jobs.put(None)

    def _left(self) -> float:
        call = self._call
        return self._deadline_s if call is None else call[1] + self._deadline_s - time.monotonic()

    def _stuck(self) -> HungError:
        name, since = self._call or ("a driver call", time.monotonic())
        return HungError(name, time.monotonic() - since)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = job.work()
            except BaseException as error:  # noqa: BLE001  the waiting side's to judge
                failure = error
            job.ended.set()
            try:
                job.loop.call_soon_threadsafe(_settle, job.future, value, failure)
            except RuntimeError:  # the loop is closed: nobody is left to hear it
                return


def _settle(future: asyncio.Future[Any], value: object, failure: BaseException | None) -> None:
    if future.cancelled() or future.done():
        return
    if failure is None:
        future.set_result(value)
    elif not isinstance(failure, _AbandonedError):
        future.set_exception(failure)
        future.exception()  # retrieved: whoever still waits sees it
