"""Calls from other threads into the loop of the blocking facade.

A request of one thread is answered by way of two hand-overs, to the loop and back, and whatever the
loop does beside them is paid by every request. So what is asked for is started and sent in the turn
that the hand-over wakes, and ends in the turn that reads the reply.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Reply(asyncio.Future[T]):
    """A future that takes along, in the turn of its result, the one call that waits for it."""

    wake: Callable[[], None] | None = None

    def set_result(self, result: T) -> None:
        """As a future does."""
        super().set_result(result)
        if self.wake is not None:
            self.wake()

    def set_exception(self, exception: type | BaseException) -> None:
        """As a future does: what follows from an error may need all that goes with it."""
        super().set_exception(exception)
        if self.wake is not None:
            self.get_loop().call_soon(self.wake)

    def cancel(self, msg: object = None) -> bool:
        """As a future does; whoever waits for it is told."""
        cancelled = super().cancel(msg)
        if cancelled and self.wake is not None:
            self.get_loop().call_soon(self.wake)
        return cancelled


class Call(ABC, Generic[T]):
    """A coroutine that another thread waits for, by a lock that its end opens.

    As ``asyncio.run_coroutine_threadsafe``, whose two futures would cost a third of a request.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._open = threading.Lock()
        self._open.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None
        self.ended = False
        self.failed = False

    @property
    def result(self) -> T:
        """What it came to, once it has ended and has not failed."""
        assert self.ended, "it has ended"
        assert not self.failed, "it has a result"
        return cast("T", self._result)

    @abstractmethod
    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, on the loop."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel what has begun, on the loop."""

    def close(self) -> None:
        """It is not to be begun, and nobody waits for it."""
        self._work.close()

    def refuse(self, error: Exception) -> None:
        """It is not to be begun, and raises where it is waited for."""
        self._work.close()
        self._end(None, error)

    def wait(self) -> T:
        """The result, or what it raised; on the other thread."""
        self._open.acquire()
        if self._error is None:
            return self.result
        try:
            raise self._error
        finally:
            self._error = None  # it holds this frame, which holds it

    def _end(self, result: T | None, error: BaseException | None) -> None:
        self._result = result
        self._error = CancelledError() if isinstance(error, asyncio.CancelledError) else error
        self.failed = error is not None
        self.ended = True
        self._open.release()


class TaskCall(Call[T]):
    """One that runs as a task."""

    _task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, on the loop."""
        self._task = loop.create_task(self._run())

    def cancel(self) -> None:
        """Cancel what has begun, on the loop."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            result = await self._work
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._end(None, error)
        else:
            self._end(result, None)


class StepCall(Call[T]):
    """One that is no task: its first step is taken at once, the next with the reply it waits for.

    That is for the operations of the protocol. What looks for the current task, as
    ``asyncio.timeout`` does, needs one.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__(work)
        self._context = copy_context()
        self._waits_for: asyncio.Future[object] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the first step, on the loop."""
        self._loop = loop
        self._context.run(self._step)

    def cancel(self) -> None:
        """Cancel what has begun, on the loop."""
        waits_for = self._waits_for
        if waits_for is not None and not waits_for.done():
            self._leave(waits_for)
            waits_for.cancel()
            self._context.run(self._step, asyncio.CancelledError())

    def _step(self, thrown: BaseException | None = None) -> None:
        work = self._work
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as stop:
            self._end(stop.value, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._end(None, error)
        else:
            self._wait_for(waits_for)

    def _wait_for(self, future: "asyncio.Future[object] | None") -> None:
        if future is None:  # a step that only lets others have a turn
            self._loop.call_soon(self._go_on)
            return
        future._asyncio_future_blocking = False  # noqa: SLF001 - as a task says
        self._waits_for = future
        if isinstance(future, Reply):
            future.wake = self._go_on
        else:
            future.add_done_callback(self._go_on)

    def _leave(self, future: "asyncio.Future[object]") -> None:
        self._waits_for = None
        if isinstance(future, Reply):
            future.wake = None
        else:
            future.remove_done_callback(self._go_on)

    def _go_on(self, _: object = None) -> None:
        self._waits_for = None
        self._context.run(self._step)
