"""The process that all members of a test run come from, as forks of one that has imported zabd.

`zabd.testing.launcher` starts this module as a program. An import of the daemon costs a member most
of its start; here it is paid once, and a member is there a few milliseconds after it was asked for.
Requests come in as one JSON object a line, answers and news go out likewise:

    {"id": 1, "launch": ["--config", ...], "log": FILE}   {"id": 1, "ok": PID}
    {"id": 2, "signal": [PID, 9]}                         {"id": 2, "ok": null}
    {"id": 3, "open": {NAME: PORT}}                       {"id": 3, "ok": {NAME: PORT}}
    {"id": 4, "cut": [NAME]}                              {"id": 4, "ok": null}
                                                          {"ended": PID, "status": -9}

Invariants
    N1  When the standard input ends, every member is killed: it ends when the test run does,
        however that happens. Should the nursery be killed itself, Linux kills its forks.
    N2  This process has one thread and no loop, so that a fork of it is a clean start. The relays
        are a fork as well, which reads what concerns it from a pipe.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from zabd.cli import daemon
from zabd.testing.relay import Switchboard

CHUNK_BYTES: Final = 65_536
EXIT_BUG: Final = 70
DESCRIPTORS: Final = 256  # more than this process ever has open
PR_SET_PDEATHSIG: Final = 1  # Linux: the signal that a process gets when its parent ends


class Nursery:
    """Forks members, watches over them, and hands on what is for the relays."""

    def __init__(self) -> None:
        self._members: dict[int, None] = {}
        self._relays: int | None = None  # the pipe to them
        self._relays_pid = 0
        self._libc = ctypes.CDLL(None)  # before the forks, none of which has to look for it
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        """Serve until the standard input ends, then leave nobody behind."""
        try:
            for line in self._lines():
                self._serve(json.loads(line))
        finally:
            self._end_all()

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._woken in ready:
                    os.read(self._woken, CHUNK_BYTES)
                    self._collect()
                if 0 in ready:
                    chunk = os.read(0, CHUNK_BYTES)
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines

    def _serve(self, request: dict[str, Any]) -> None:
        match request:
            case {"launch": arguments, "log": log}:
                pid = self._fork(lambda: _become_member(arguments, log))
                self._members[pid] = None
                say({"id": request["id"], "ok": pid})
            case {"signal": [pid, number]}:
                if pid in self._members:  # so it is not reaped, and the number is still its own
                    os.killpg(pid, number)
                say({"id": request["id"], "ok": None})
            case _:
                self._hand_on(request)

    def _hand_on(self, request: dict[str, Any]) -> None:
        if self._relays is None:
            reading, self._relays = os.pipe()
            self._relays_pid = self._fork(lambda: _become_relays(reading))
            os.close(reading)
        os.write(self._relays, json.dumps(request).encode() + b"\n")

    def _fork(self, become: Callable[[], None]) -> int:
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            if sys.platform == "linux":
                self._libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            _live(become)
        with contextlib.suppress(OSError):  # the child does it too: whoever comes first
            os.setpgid(pid, pid)
        return pid

    def _collect(self) -> None:
        for pid in list(self._members):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                del self._members[pid]
                say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
        if self._relays_pid and os.waitpid(self._relays_pid, os.WNOHANG)[0]:
            self._relays_pid = 0
            raise RuntimeError("the relays have ended by themselves, so members are out of reach")

    def _end_all(self) -> None:
        for pid in (*self._members, *filter(None, [self._relays_pid])):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def say(message: dict[str, Any]) -> None:
    """One line to who started us; if nobody listens any more, the end of the input follows."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


# What a fork does.


def _live(become: Callable[[], None]) -> NoReturn:
    status = EXIT_BUG
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        become()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else EXIT_BUG
    except BaseException:  # noqa: BLE001 - nothing may return into the nursery's own life
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _become_member(arguments: list[str], log: str) -> None:
    _redirect(0, os.open(os.devnull, os.O_RDONLY))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _redirect(2, os.dup(output))
    _redirect(1, output)
    os.closerange(3, DESCRIPTORS)
    with contextlib.suppress(OSError):  # a name for `ps` and `top`, where there is such a thing
        Path("/proc/self/comm").write_text(f"zabd {arguments[-1]}", encoding="ascii")
    sys.argv = ["zabd", *arguments]
    daemon.main()


def _become_relays(reading: int) -> None:
    _redirect(0, os.dup(reading))
    os.closerange(3, DESCRIPTORS)
    asyncio.run(_relay())


def _redirect(descriptor: int, target: int) -> None:
    os.dup2(target, descriptor)
    os.close(target)


async def _relay() -> None:
    """Serve relays until the nursery has gone, however it went."""
    loop = asyncio.get_running_loop()
    switchboard = Switchboard()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), os.fdopen(0, "rb", buffering=0)
    )
    while line := await requests.readline():
        await _answer(switchboard, json.loads(line))


async def _answer(switchboard: Switchboard, request: dict[str, Any]) -> None:
    number = request.pop("id")
    [(action, argument)] = request.items()
    if action == "open":
        say({"id": number, "ok": await switchboard.open(argument)})
    else:
        switchboard.act(action, argument)
        say({"id": number, "ok": None})


def main() -> None:
    """Import what a member will want, then serve."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401 - the daemon takes it if it is there
    Nursery().run()


if __name__ == "__main__":
    main()
