"""A user's command that runs only as long as something is held: paused, continued, ended.

    G1  While the session is SUSPENDED the whole process group is stopped; it continues only after
        the ensemble has confirmed that what is held is still held.
    G2  Once it is lost the group is ended: SIGTERM, continued so that it can take it, and SIGKILL
        for what is left after the grace time.
    G3  The group is gone before `supervised` returns or raises.
    G4  If this process is killed the group is ended too, as G2 says, by a `Reaper` that sees it: a
        command must not work on under a session that nobody keeps alive.

If this process itself is frozen its command is not: then only the fencing token protects whatever
the command writes to.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from zabd.cli.output import CommandError, ExitStatus
from zabd.cli.reaper import Reaper
from zabd.model.errors import ConnectionLossError, ZabdError

if TYPE_CHECKING:
    from zabd.client import Client, StateChange

GRACE_S = 5.0
CHUNK_BYTES = 65536
COULD_NOT_RUN = 126  # as a shell says it
NOT_FOUND = 127
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class CommandGroup:
    """One command with everything it starts in its process group."""

    def __init__(
        self, process: asyncio.subprocess.Process, reaper: Reaper, *, grace_s: float = GRACE_S
    ) -> None:
        self.paused = False
        self.ended_by_us = False
        self._process = process
        self._reaper = reaper
        self._grace_s = grace_s

    def pause(self) -> None:
        """SIGSTOP to the group."""
        self.paused = True
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT to the group."""
        self.paused = False
        self._send(signal.SIGCONT)

    def forward(self, number: signal.Signals) -> None:
        """Pass on a signal that this process was sent; a paused group is woken to take it."""
        self._send(number)
        if self.paused and number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
            self.go_on()

    async def end(self) -> None:
        """End the group as G2 says; returns when its leader is gone."""
        self.ended_by_us = True
        self._send(signal.SIGTERM)
        self.go_on()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await self._process.wait()
        # Whatever the leader has left behind goes too.
        self._send(signal.SIGKILL)
        await self._process.wait()
        self._reaper.forget(self._process.pid)
        self._reaper.close()

    async def wait(self) -> int:
        """The exit status, negative for a signal."""
        return await self._process.wait()

    async def copy_output(self, keep_bytes_max: int) -> bytes:
        """Pass standard output on as it comes; the first so many bytes of it."""
        stdout = self._process.stdout
        assert stdout is not None, "the command was started with its output captured"
        kept = bytearray()
        while chunk := await stdout.read(CHUNK_BYTES):
            kept += chunk[: max(0, keep_bytes_max - len(kept))]
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return bytes(kept)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    capture: bool = False,
    grace_s: float = GRACE_S,
) -> CommandGroup:
    """Start a command in a process group of its own, which gets the terminal if there is one."""
    reaper = Reaper(grace_s)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE if capture else None,
            process_group=0,
            preexec_fn=reaper.watch_self,
        )
    except OSError as error:
        reaper.close()
        missing = isinstance(error, FileNotFoundError)
        raise _cannot_run(command, error, NOT_FOUND if missing else COULD_NOT_RUN) from error
    _hand_over_terminal(process.pid)
    return CommandGroup(process, reaper, grace_s=grace_s)


@contextlib.asynccontextmanager
async def supervised(
    group: CommandGroup, client: "Client", verify: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Pause and continue the group with the client's session (G1); end it on the way out (G3).

    `verify` asks the ensemble whether what is held is still held, and raises if it is not.
    """
    loop = asyncio.get_running_loop()
    reopenings: dict[asyncio.Task[None], None] = {}

    def notice(change: "StateChange") -> None:
        from zabd.client import SessionState

        if change.state is SessionState.CONNECTED:
            task = loop.create_task(_reopen(group, client, verify))
            reopenings[task] = None
            task.add_done_callback(lambda done: reopenings.pop(done, None))
        else:
            group.pause()

    remove = client.on_transition(notice)
    for number in FORWARDED:
        loop.add_signal_handler(number, group.forward, number)
    try:
        yield
    finally:
        remove()
        for task in list(reopenings):
            task.cancel()
        await asyncio.shield(group.end())
        for number in FORWARDED:
            loop.remove_signal_handler(number)
        _hand_over_terminal(os.getpgrp())


def shell_status(status: int) -> int:
    """An exit status as a shell shows it: 128 and the number for a signal."""
    return status if status >= 0 else 128 - status


async def _reopen(
    group: CommandGroup, client: "Client", verify: Callable[[], Awaitable[None]]
) -> None:
    try:
        await verify()
    except ConnectionLossError:
        return  # the next connection asks again
    except ZabdError:
        return  # lost: whoever holds hears of it and ends the group
    if client.connected:
        group.go_on()


def _cannot_run(command: Sequence[str], error: OSError, status: int) -> CommandError:
    failure = CommandError(f"{command[0]}: {error.strerror}", ExitStatus.REFUSED)
    failure.exit_code = status  # type: ignore[misc] # click reads it from the instance
    return failure


def _hand_over_terminal(process_group: int) -> None:
    """Make this group the terminal's foreground, so that it may read, and gets Ctrl-C."""
    if not sys.stdin.isatty():
        return
    # Asking for it from the background would otherwise stop us.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(sys.stdin.fileno(), process_group)
        if process_group != os.getpgrp():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process_group, signal.SIGCONT)  # it may have tried to read already
    finally:
        signal.signal(signal.SIGTTOU, before)
