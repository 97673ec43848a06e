"""`zabctl shell`: ZooKeeper's command line on a zabd or ZooKeeper ensemble."""

import asyncio
import os
import sys

import click

from zabd.cli.connection import Connection, connection_options
from zabd.cli.output import ExitStatus
from zabd.cli.shell.history import History, history_file
from zabd.cli.shell.loops import run_lines
from zabd.cli.shell.printer import Printer
from zabd.cli.shell.shell import Shell
from zabd.cli.shell.table import COMMANDS
from zabd.model.errors import ZabdError

# What needs no ensemble when it is the only command.
_LOCAL = frozenset({"help", "version"})


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per answer.")
@connection_options
def shell(connection: Connection, command: tuple[str, ...], *, as_json: bool) -> None:
    """Type ZooKeeper's commands: at a terminal, through a pipe, or COMMAND alone.

    The commands and their options are those of zkCli.sh: `help` lists them. Words are quoted as in
    a shell. A command that fails prints one line, and the next one is read. The status of COMMAND,
    or of the first command of a pipe that failed, is the exit status.
    """
    raise SystemExit(asyncio.run(_run(connection, list(command), as_json=as_json)))


async def _run(connection: Connection, words: list[str], *, as_json: bool) -> ExitStatus:
    # Without a standard input there is nobody who types, and nothing to read.
    descriptor = -1 if sys.stdin is None else sys.stdin.fileno()
    typed = not words and descriptor >= 0 and os.isatty(descriptor)
    history = History(history_file() if typed else None)
    shell = Shell(connection, Printer(as_json=as_json), history, tell_state=typed)
    try:
        if not (words and words[0] in _LOCAL):
            await _connect(shell, typed=typed)
        if words:
            await shell.run_words(words)
        elif typed:
            await _at_terminal(shell)
        elif descriptor >= 0:
            await run_lines(shell, descriptor, prompt=False)
    finally:
        await shell.close()
    return ExitStatus.OK if typed else shell.status


async def _connect(shell: Shell, *, typed: bool) -> None:
    try:
        await shell.connect()
    except ZabdError as error:
        if not typed:
            raise
        shell.failed(error)  # `connect` tries again, perhaps elsewhere


async def _at_terminal(shell: Shell) -> None:
    if not sys.stdout.isatty():  # it goes into a pipe, where no editor can draw
        await run_lines(shell, sys.stdin.fileno(), prompt=True)
        return
    try:
        from zabd.cli.shell.terminal import run_terminal
    except ImportError:
        shell.out.note("no completion or editing: `pip install zabd[shell]` brings both")
        await run_lines(shell, sys.stdin.fileno(), prompt=True)
    else:
        shell.out.note(f"{len(COMMANDS)} commands, `help` lists them; Tab completes")
        await run_terminal(shell)
