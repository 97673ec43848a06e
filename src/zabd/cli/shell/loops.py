"""Where the shell's lines come from: a pipe or a plain terminal, read as they come."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING

import click

from zabd.cli.shell.lines import LineError, LineSplitter, decoded

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell

CHUNK_BYTES = 65536


async def run_lines(shell: "Shell", descriptor: int, *, prompt: bool) -> None:
    """Do each line until the end of the input or `quit`."""
    if prompt:
        _prompt(shell)
    async for line in read_lines(descriptor):
        try:
            text = decoded(line)
        except LineError as error:
            shell.failed(error)
        else:
            await (interruptible(shell, shell.run_line(text)) if prompt else shell.run_line(text))
        if shell.ended:
            return
        if prompt:
            _prompt(shell)


async def read_lines(descriptor: int) -> AsyncIterator[bytes | None]:
    """The lines of a file, pipe or terminal; None in the place of one that is too long.

    A thread reads, since no loop can wait for a plain file; it reads on only when it is asked to,
    and ends with the process at the latest.
    """
    loop = asyncio.get_running_loop()
    splitter = LineSplitter()
    while True:
        chunk: asyncio.Future[bytes] = loop.create_future()
        threading.Thread(target=_read, args=(descriptor, chunk, loop), daemon=True).start()
        data = await chunk
        for line in splitter.feed(data) if data else splitter.rest():
            yield line
        if not data:
            return


async def interruptible(shell: "Shell", work: Awaitable[None]) -> None:
    """Await a command; Ctrl-C ends the command, and the shell lives on."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        shell.out.note("interrupted; whether a write was applied is not known")
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _read(descriptor: int, chunk: "asyncio.Future[bytes]", loop: asyncio.AbstractEventLoop) -> None:
    try:
        data = os.read(descriptor, CHUNK_BYTES)
    except OSError:
        data = b""  # a terminal that is gone is the end of what is typed there
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_deliver, chunk, data)


def _deliver(chunk: "asyncio.Future[bytes]", data: bytes) -> None:
    if not chunk.done():
        chunk.set_result(data)


def _prompt(shell: "Shell") -> None:
    # To standard error, so that a pipe carries answers alone.
    click.echo(f"[{shell.connection.server}({shell.state})] ", nl=False, err=True)
