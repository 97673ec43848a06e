"""The blocking facade: the same names, for scripts and threads.

The asyncio client runs on a loop of its own in a thread, so heartbeats go on whatever the caller's
threads do. Methods may be called from any thread. Watchers and listeners are called in order on a
second thread, and may use the client.

``with SyncClient("h1:2181,h2:2181") as zk: zk.create("/a", b"1")``
"""

import asyncio
import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from zabd.client.calls import Call, Reply, StepCall, TaskCall
from zabd.client.client import Client
from zabd.client.effects import Credentials, SessionState
from zabd.client.events import DRAIN_GRACE, Listener, StateChange, Watcher
from zabd.client.forks import fork_count, require_same_process
from zabd.client.operations import UNSET, Timeout
from zabd.client.transaction import Transaction
from zabd.model.acl import Acl
from zabd.model.errors import LocalProtocolError
from zabd.model.ids import SessionId
from zabd.model.metrics import Metrics
from zabd.model.ops import MultiOp, MultiReadOp
from zabd.model.results import (
    AclResult,
    ClientInfo,
    Create2Result,
    GetDataResult,
    MultiPart,
    Result,
)
from zabd.model.stat import Stat
from zabd.model.watch_events import WatcherType

T = TypeVar("T")
E = TypeVar("E")

log = logging.getLogger("zabd.client")

_WAKES_MAX = 4096

Undo: TypeAlias = Callable[[T], Coroutine[Any, Any, object]]


def new_loop() -> asyncio.AbstractEventLoop:
    """One of uvloop's where that is installed: a request then takes a third less CPU."""
    try:
        import uvloop  # noqa: PLC0415 - asyncio's own clients do without it
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """An asyncio loop on a thread, for one client, and another thread for callbacks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = new_loop()
        self._asked: deque[Call[Any]] = deque()
        # asyncio's own way to wake a loop reads twice, and makes a handle, for every request.
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_loop, name="zabd-client-loop", daemon=True),
            threading.Thread(target=self._run_calls, name="zabd-client-callbacks", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Run a coroutine that uses the client, and wait for it; an interrupt cancels it there.

        One that comes when the work has just ended finds a result that the caller will never see:
        `undo` is given it, on the loop, and gives back what was taken.
        """
        return self._wait(TaskCall(work), undo)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that asks no more of its task than to wait: see `StepCall`."""
        return self._wait(StepCall(work))

    def _wait(self, call: Call[T], undo: Undo[T] | None = None) -> T:
        if threading.current_thread() is self._threads[0]:
            call.close()
            raise LocalProtocolError("the blocking client was called on its own loop's thread")
        try:
            self._asked.append(call)
            self._wake()
            return call.wait()
        except BaseException:
            if not call.failed:  # it is not the call's own error
                self._abandon(call, undo)
            raise

    def _wake(self) -> None:
        """Let the loop start what was asked for."""
        try:
            self._bell.send(b"\0")
        except BlockingIOError:
            pass  # so many have woken it already
        except OSError:
            raise LocalProtocolError("the client is closed") from None

    def _start_all(self) -> None:
        """Begin what was asked for, and send all of that at once."""
        self._ear.recv(_WAKES_MAX)
        with self._client.sending():
            while self._asked:
                self._asked.popleft().start(self._loop)

    def _abandon(self, call: Call[T], undo: Undo[T] | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel, call, undo)
        except RuntimeError:  # the loop has ended
            call.close()

    def _cancel(self, call: Call[T], undo: Undo[T] | None) -> None:
        if call in self._asked:
            self._asked.remove(call)
            call.close()
        elif not call.ended:
            call.cancel()
        elif undo is not None and not call.failed:
            self._client.spawn(undo(call.result))

    def off_loop(self, callback: Callable[[E], object]) -> Callable[[E], None]:
        """The callback, to be called in order on the callbacks' thread."""
        return lambda event: self._calls.put(lambda: callback(event))

    def stop(self) -> None:
        """End both threads behind what they have to do; a callback gets `DRAIN_GRACE` to return."""
        self._calls.put(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        own = threading.current_thread()
        loop_thread, calls_thread = self._threads
        if loop_thread is not own:
            loop_thread.join()
        if calls_thread is not own:
            calls_thread.join(DRAIN_GRACE)
            if calls_thread.is_alive():
                log.error("a watcher or listener has not returned %s s after the end", DRAIN_GRACE)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._ear, self._start_all)
        try:
            self._loop.run_forever()
        finally:
            # Whoever asks from here on hears it by the bell; those before must not wait for ever.
            self._bell.close()
            while self._asked:
                self._asked.popleft().refuse(LocalProtocolError("the client is closed"))
            self._loop.remove_reader(self._ear)
            self._ear.close()
            # An interrupted call may have left its task behind.
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            self._loop.close()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:
                # Even what would end a thread: one user's callback must not silence the others.
                log.exception("a watcher or listener failed")


class SyncTransaction:
    """As `Transaction`, with a commit that blocks."""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client
        self._transaction: Transaction = client.asyncio_client.transaction()

    @property
    def results(self) -> tuple[MultiPart, ...] | None:
        """What the commit returned."""
        return self._transaction.results

    def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Self:
        """Create a znode."""
        self._transaction.create(path, data, acl=acl, ephemeral=ephemeral, sequential=sequential)
        return self

    def delete(self, path: str, *, version: int = -1) -> Self:
        """Delete a znode; -1 is any version."""
        self._transaction.delete(path, version=version)
        return self

    def set(self, path: str, data: bytes | None, *, version: int = -1) -> Self:
        """Replace a znode's data; -1 is any version."""
        self._transaction.set(path, data, version=version)
        return self

    def check(self, path: str, *, version: int = -1) -> Self:
        """Let nothing happen unless the znode exists and has this version (-1: any)."""
        self._transaction.check(path, version=version)
        return self

    def commit(self) -> tuple[MultiPart, ...]:
        """Send it; return one result for each op, in their order."""
        return self._client.run(self._transaction.commit())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._transaction.results is None:
            self.commit()


class _Client(Client):
    reply_class: ClassVar[type[asyncio.Future[Result]]] = Reply


class SyncClient:
    """As `Client`, with methods that block; the options are the same."""

    def __init__(self, hosts: str, **options: Any) -> None:  # noqa: ANN401 - those of Client
        self.asyncio_client: Client = _Client(hosts, **options)
        self._thread: LoopThread | None = None
        self._forks = fork_count()

    # Life and state.

    def start(self) -> None:
        """Open a session; returns once a server has granted it."""
        if self._thread is not None:
            raise LocalProtocolError("a client is started once; make a new one")
        self._thread = LoopThread(self.asyncio_client)
        try:
            self.run(self.asyncio_client.start())
        except BaseException:
            self.close()
            raise

    def close(self, timeout: float = 2.0) -> None:
        """End the session, and with it its ephemerals."""
        require_same_process(self._forks)
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.run(self.asyncio_client.close(timeout))
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T], *, undo: Undo[T] | None = None) -> T:
        """Run a coroutine that uses `asyncio_client` on its loop, and wait for it.

        If this thread is interrupted when the work has just ended, `undo` is run there with the
        result that nobody will see.
        """
        if self._thread is None:
            work.close()
        return self._require_thread().run(work, undo)

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for the operations of the protocol."""
        if self._thread is None:
            work.close()
        return self._require_thread().ask(work)

    @property
    def state(self) -> SessionState:
        """The state now, by the local lease too."""
        return self.run(self._get(lambda zk: zk.state))

    @property
    def connected(self) -> bool:
        """Whether a server has the session and answers."""
        return self.state is SessionState.CONNECTED

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._thread is None or self.asyncio_client.closed

    @property
    def metrics(self) -> Metrics:
        """Where this client's figures are; they change on the client's own thread."""
        return self.asyncio_client.metrics

    @property
    def session_id(self) -> SessionId:
        """The current session's id, 0 between two sessions."""
        return self.asyncio_client.session_id

    @property
    def credentials(self) -> Credentials | None:
        """What takes the current session over, or ends it from outside; None between sessions."""
        return self.asyncio_client.credentials

    @property
    def session_timeout(self) -> float:
        """The negotiated session timeout in seconds."""
        return self.asyncio_client.session_timeout

    @property
    def chroot(self) -> str:
        """The path on the servers that is this client's root."""
        return self.asyncio_client.chroot

    def wait_connected(self, *, timeout: float | None = None) -> None:
        """Wait until a server has a session of ours."""
        self.run(self.asyncio_client.wait_connected(timeout=timeout))

    def add_listener(self, listener: Callable[[StateChange], object]) -> Listener:
        """Tell `listener` of each state change; returns what `remove_listener` takes."""
        off_loop = self._require_thread().off_loop(listener)
        self.run(self._get(lambda zk: zk.add_listener(off_loop)))
        return off_loop

    def remove_listener(self, listener: Listener) -> None:
        """Stop telling it."""
        self.run(self._get(lambda zk: zk.remove_listener(listener)))

    def add_auth(self, scheme: str, credentials: str | bytes) -> None:
        """Authenticate this connection and all later ones."""
        self.run(self.asyncio_client.add_auth(scheme, credentials))

    # Writes.

    def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
        make_parents: bool = False,
        timeout: Timeout = UNSET,
    ) -> str:
        """Create a znode and return its path, with the number of a sequential one."""
        return self._ask(
            self.asyncio_client.create(
                path,
                data,
                acl=acl,
                ephemeral=ephemeral,
                sequential=sequential,
                container=container,
                ttl=ttl,
                make_parents=make_parents,
                timeout=timeout,
            )
        )

    def create_with_stat(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
        make_parents: bool = False,
        timeout: Timeout = UNSET,
    ) -> Create2Result:
        """As `create`, with the new znode's Stat."""
        return self._ask(
            self.asyncio_client.create_with_stat(
                path,
                data,
                acl=acl,
                ephemeral=ephemeral,
                sequential=sequential,
                container=container,
                ttl=ttl,
                make_parents=make_parents,
                timeout=timeout,
            )
        )

    def delete(
        self, path: str, *, version: int = -1, recursive: bool = False, timeout: Timeout = UNSET
    ) -> None:
        """Delete a znode; -1 is any version. `recursive` deletes what is below first."""
        self._ask(
            self.asyncio_client.delete(path, version=version, recursive=recursive, timeout=timeout)
        )

    def set(
        self, path: str, data: bytes | None, *, version: int = -1, timeout: Timeout = UNSET
    ) -> Stat:
        """Replace a znode's data; -1 is any version."""
        return self._ask(self.asyncio_client.set(path, data, version=version, timeout=timeout))

    def set_acl(
        self, path: str, acl: Sequence[Acl], *, version: int = -1, timeout: Timeout = UNSET
    ) -> Stat:
        """Replace a znode's ACL; `version` is compared with `aversion`, -1 is any."""
        return self._ask(self.asyncio_client.set_acl(path, acl, version=version, timeout=timeout))

    def ensure_path(self, path: str, *, acl: tuple[Acl, ...] | None = None) -> None:
        """Create the znode and what is missing above it."""
        self._ask(self.asyncio_client.ensure_path(path, acl=acl))

    def transaction(self) -> SyncTransaction:
        """Gather writes and checks that happen all together or not at all."""
        return SyncTransaction(self)

    def multi(self, ops: Sequence[MultiOp], *, timeout: Timeout = UNSET) -> tuple[MultiPart, ...]:
        """Do all of these ops or none; the error of the op that failed raises (`op_index`)."""
        return self._ask(self.asyncio_client.multi(ops, timeout=timeout))

    # Reads and watches.

    def get(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> GetDataResult:
        """Return data and Stat; `watch` hears once of the next change or deletion."""
        watcher = self._off_loop(watch)
        return self._ask(self.asyncio_client.get(path, watch=watcher, timeout=timeout))

    def exists(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> Stat | None:
        """Return the Stat, or None; `watch` hears once of creation, change or deletion."""
        watcher = self._off_loop(watch)
        return self._ask(self.asyncio_client.exists(path, watch=watcher, timeout=timeout))

    def get_children(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> list[str]:
        """Return the children's names, sorted; `watch` hears once that they changed."""
        watcher = self._off_loop(watch)
        return self._ask(self.asyncio_client.get_children(path, watch=watcher, timeout=timeout))

    def get_children_with_stat(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> tuple[list[str], Stat]:
        """As `get_children`, with the parent's Stat."""
        watcher = self._off_loop(watch)
        return self._ask(
            self.asyncio_client.get_children_with_stat(path, watch=watcher, timeout=timeout)
        )

    def get_acl(self, path: str, *, timeout: Timeout = UNSET) -> AclResult:
        """Return ACL and Stat."""
        return self._ask(self.asyncio_client.get_acl(path, timeout=timeout))

    def get_ephemerals(self, prefix: str = "/", *, timeout: Timeout = UNSET) -> list[str]:
        """Return the paths of this session's ephemerals that start with `prefix`, as text."""
        return self._ask(self.asyncio_client.get_ephemerals(prefix, timeout=timeout))

    def count_descendants(self, path: str, *, timeout: Timeout = UNSET) -> int:
        """Return how many znodes there are below `path`."""
        return self._ask(self.asyncio_client.count_descendants(path, timeout=timeout))

    def multi_read(
        self, ops: Sequence[MultiReadOp], *, timeout: Timeout = UNSET
    ) -> tuple[MultiPart, ...]:
        """Read several from one state of the tree; each part is a result or an `ErrorResult`."""
        return self._ask(self.asyncio_client.multi_read(ops, timeout=timeout))

    def sync(self, path: str = "/", *, timeout: Timeout = UNSET) -> None:
        """Wait until this server has everything that the leader had at the time of the call."""
        self._ask(self.asyncio_client.sync(path, timeout=timeout))

    def reconfig(
        self,
        *,
        joining: str | None = None,
        leaving: str | None = None,
        new_members: str | None = None,
        from_config: int = -1,
        timeout: Timeout = UNSET,
    ) -> GetDataResult:
        """Change the ensemble's members; return the new configuration."""
        return self._ask(
            self.asyncio_client.reconfig(
                joining=joining,
                leaving=leaving,
                new_members=new_members,
                from_config=from_config,
                timeout=timeout,
            )
        )

    def get_config(
        self, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> GetDataResult:
        """Return the ensemble's configuration."""
        watcher = self._off_loop(watch)
        return self._ask(self.asyncio_client.get_config(watch=watcher, timeout=timeout))

    def who_am_i(self, *, timeout: Timeout = UNSET) -> tuple[ClientInfo, ...]:
        """Return the identities that the server knows this connection by."""
        return self._ask(self.asyncio_client.who_am_i(timeout=timeout))

    def add_watch(
        self, path: str, watcher: Watcher, *, recursive: bool = False, timeout: Timeout = UNSET
    ) -> None:
        """Tell `watcher` of every change from now on, of all below as well if `recursive`."""
        off_loop = self._require_thread().off_loop(watcher)
        self._ask(
            self.asyncio_client.add_watch(path, off_loop, recursive=recursive, timeout=timeout)
        )

    def remove_watches(
        self, path: str, kind: WatcherType = WatcherType.ANY, *, timeout: Timeout = UNSET
    ) -> None:
        """Remove this client's watches of that kind on `path` from the server."""
        self._ask(self.asyncio_client.remove_watches(path, kind, timeout=timeout))

    def off_loop(self, callback: Callable[[E], object]) -> Callable[[E], None]:
        """What calls back on the callbacks' thread, in order with watchers and listeners."""
        return self._require_thread().off_loop(callback)

    # Inside.

    def _require_thread(self) -> LoopThread:
        require_same_process(self._forks)
        if self._thread is None:
            raise LocalProtocolError("the client is not started; use `with SyncClient(...)`")
        return self._thread

    def _off_loop(self, watcher: Watcher | None) -> Watcher | None:
        return None if watcher is None else self._require_thread().off_loop(watcher)

    async def _get(self, ask: Callable[[Client], T]) -> T:
        return ask(self.asyncio_client)
