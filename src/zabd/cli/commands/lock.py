"""`zabctl lock`: a command that runs while a lock is held."""

import asyncio
import shlex
from typing import TYPE_CHECKING

import click

from zabd.cli.command_group import GRACE_S, CommandGroup, shell_status, start, supervised
from zabd.cli.connection import Connection, checked_path, connection_options
from zabd.cli.output import CommandError, ExitStatus, say

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.recipes.lock import Lock

IDENTIFIER_LENGTH_MAX = 200


EXIT_HELP = """\b
Exit status: that of COMMAND (128 + n after signal n), or
  69   no member serves or could be reached
  75   the lock was not free in time, or was lost while COMMAND ran
  126  COMMAND cannot be run
  127  COMMAND is not found
"""


@click.command(context_settings={"ignore_unknown_options": True}, epilog=EXIT_HELP)
@click.argument("path", callback=checked_path)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--wait", metavar="SECS", type=float, help="Wait for the lock for at most so long.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the lock at all.")
@click.option("--grace", default=GRACE_S, metavar="SECS", help="From SIGTERM to SIGKILL.")
@connection_options
def lock(
    connection: Connection,
    path: str,
    command: tuple[str, ...],
    wait: float | None,
    grace: float,
    *,
    no_wait: bool,
) -> None:
    """Run COMMAND while holding the lock PATH; write -- in front of it.

    COMMAND finds in its environment ZABD_LOCK_PATH and ZABD_FENCING_TOKEN, a number that is greater
    for each later holder: hand it to whatever is written to, and let that refuse lower ones.

    When the connection is lost COMMAND and its children are stopped (SIGSTOP); they go on when the
    session is there again, and are ended (SIGTERM, later SIGKILL) when it is over, or when this
    program is killed. If it is frozen itself, COMMAND is not: then only the token protects what
    COMMAND writes to.
    """
    if no_wait and wait is not None:
        raise click.UsageError("--wait and --no-wait exclude each other")

    async def work(client: "Client") -> int:
        from zabd.client.recipes.lock import Lock

        identity = f"{client.identity.host}:{client.identity.pid} {shlex.join(command)}"
        held = Lock(client, path, identifier=identity[:IDENTIFIER_LENGTH_MAX])
        await _acquire(held, wait, no_wait=no_wait)
        try:
            return await _run_holding(client, held, command, grace)
        finally:
            await held.release()

    raise SystemExit(connection.run(work))


async def _acquire(held: "Lock", wait: float | None, *, no_wait: bool) -> None:
    from zabd.client.recipes.lock import LockTimeoutError

    try:
        acquired = await held.acquire(blocking=not no_wait, timeout=wait)
    except LockTimeoutError as error:
        raise CommandError(str(error), ExitStatus.TRY_AGAIN) from error
    if not acquired:
        raise CommandError(f"{held.path} is held by somebody else", ExitStatus.TRY_AGAIN)


async def _run_holding(
    client: "Client", held: "Lock", command: tuple[str, ...], grace_s: float
) -> int:
    environment = {"ZABD_LOCK_PATH": held.path, "ZABD_FENCING_TOKEN": str(held.fencing_token)}
    group = await start(command, environment, grace_s=grace_s)
    async with supervised(group, client, held.verify):
        status = await _ended_or_lost(group, held)
    if status is None:
        say(f"the lock {held.path} is lost; its command was ended")
        return ExitStatus.TRY_AGAIN
    return shell_status(status)


async def _ended_or_lost(group: CommandGroup, held: "Lock") -> int | None:
    """The command's status, or None when the lock was lost before it ended."""
    ended = asyncio.ensure_future(group.wait())
    lost = asyncio.ensure_future(held.wait_lost())
    try:
        await asyncio.wait([ended, lost], return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() and not lost.done() else None
    finally:
        lost.cancel()
        ended.cancel()
