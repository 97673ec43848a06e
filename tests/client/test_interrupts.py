"""Claims: an interrupt of a blocking call leaves nothing taken that its caller never saw."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.client.real_port import real_port

from zabd.client import SyncClient, sync
from zabd.client.calls import TaskCall
from zabd.client.recipes import SyncDedup, SyncElection, SyncLock, SyncSemaphore


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


@pytest.mark.parametrize("recipe", [_lock, _semaphore, _election, _dedup])
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
