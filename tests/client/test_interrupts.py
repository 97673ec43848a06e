"""Claims: an interrupt of a blocking call leaves nothing taken that its caller never saw."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.client.fast_loop import wait_until
from tests.client.real_port import real_port

from zabd.client import SyncClient, sync
from zabd.client.calls import TaskCall
from zabd.client.recipes import (
    SyncDedup,
    SyncElection,
    SyncLock,
    SyncLockingQueue,
    SyncQueue,
    SyncSemaphore,
    SyncTtlLease,
)


class InterruptedAtItsEnd(TaskCall[Any]):
    """Ctrl-C comes when the work has ended on the loop and its caller has not heard of it."""

    def wait(self) -> object:
        super().wait()
        raise KeyboardInterrupt


def _lock(zk: SyncClient, name: str) -> Callable[[], object]:
    return partial(SyncLock(zk, f"/{name}").acquire, timeout=10.0)


def _semaphore(zk: SyncClient, name: str) -> Callable[[], object]:
    return partial(SyncSemaphore(zk, f"/{name}").acquire, timeout=10.0)


def _election(zk: SyncClient, name: str) -> Callable[[], object]:
    return partial(SyncElection(zk, f"/{name}").run, lambda _term: None, timeout=10.0)


def _dedup(zk: SyncClient, name: str) -> Callable[[], object]:
    return SyncDedup(zk, "/dedup").hold(name, acquire_timeout=10.0).__enter__


def _timed(zk: SyncClient, name: str) -> Callable[[], object]:
    return partial(SyncTtlLease(zk, f"/{name}", 20.0).acquire, timeout=10.0)


def _timed_block(zk: SyncClient, name: str) -> Callable[[], object]:
    lease = SyncTtlLease(zk, f"/{name}", 2.0)
    return lambda: (lease.__enter__(), lease.__exit__(None, None, None))


def _item(zk: SyncClient, name: str) -> Callable[[], object]:
    queue = SyncLockingQueue(zk, f"/{name}")
    if not queue.size():
        queue.put(b"one")
    return lambda: _there(queue.get(timeout=10.0))


def _there(item: object) -> None:
    assert item is not None


@pytest.mark.parametrize(
    "recipe", [_lock, _semaphore, _election, _dedup, _timed, _timed_block, _item]
)
def test_what_was_taken_when_the_interrupt_came_is_given_back(
    recipe: Callable[[SyncClient, str], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds the object that could; others would wait until the session ends."""
    with real_port() as port, ExitStack() as stack:
        zk = stack.enter_context(SyncClient(port.hosts))
        other = stack.enter_context(SyncClient(port.hosts))
        take = recipe(zk, "x")
        take_next = recipe(other, "x")
        with monkeypatch.context() as patched:
            patched.setattr(sync, "TaskCall", InterruptedAtItsEnd)
            with pytest.raises(KeyboardInterrupt):
                take()
        take_next()


def test_a_value_that_its_taker_never_saw_is_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of the ensemble already; whoever waits on another thread gets it."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        queue = SyncQueue(zk, "/x")
        queue.put_all([b"first", b"second"])
        with monkeypatch.context() as patched:
            patched.setattr(sync, "TaskCall", InterruptedAtItsEnd)
            with pytest.raises(KeyboardInterrupt):
                queue.get(timeout=10.0)
        assert [queue.get(timeout=10.0), queue.get(timeout=10.0)] == [b"first", b"second"]
        recipe = queue._recipe

        async def have_back_while_one_waits() -> bytes | None:
            waiting = zk.asyncio_client.spawn(recipe.get(timeout=10.0))
            await wait_until(lambda: recipe._waiting is not None)
            await recipe._keep(b"third")
            return await waiting

        assert zk.run(have_back_while_one_waits()) == b"third"


def test_an_interrupted_close_still_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that runs on would keep the session, and what it holds, alive."""
    with real_port() as port:
        zk = SyncClient(port.hosts)
        zk.start()
        thread = zk._require_thread()
        monkeypatch.setattr(sync, "TaskCall", InterruptedAtItsEnd)
        with pytest.raises(KeyboardInterrupt):
            zk.close()
        assert not any(each.is_alive() for each in thread._threads)
