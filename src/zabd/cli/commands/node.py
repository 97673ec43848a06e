"""`zabctl ls|get|set|create|delete|stat|sync`: one znode, or a subtree of them."""

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from zabd.cli.connection import Connection, checked_path, connection_options, session_lost
from zabd.cli.files import read_file
from zabd.cli.output import (
    CommandError,
    ExitStatus,
    print_data,
    print_json,
    say,
    text_or_base64,
)
from zabd.model.acl import Acl, Perms
from zabd.model.errors import NoNodeError
from zabd.model.paths import ROOT, join
from zabd.model.stat import Stat

if TYPE_CHECKING:
    from zabd.client import Client

# Requests in flight during a walk through a subtree: enough to hide the round trip.
WALK_BATCH = 256
PERMISSION_LETTERS = {
    "c": Perms.CREATE,
    "d": Perms.DELETE,
    "r": Perms.READ,
    "w": Perms.WRITE,
    "a": Perms.ADMIN,
}
ZXID_FIELDS = frozenset({"czxid", "mzxid", "pzxid", "ephemeral_owner"})

sync_first = click.option(
    "--sync", "sync_first", is_flag=True, help="Catch up with the leader first: read nothing stale."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
expected_version = click.option(
    "--version", "-v", default=-1, help="The version it must have now; -1 is any."
)


@click.command()
@click.argument("path", default=ROOT, callback=checked_path)
@click.option(
    "-r", "recursive", is_flag=True, help="Print every path below, not only the children."
)
@sync_first
@as_json
@connection_options
def ls(
    connection: Connection, path: str, *, recursive: bool, sync_first: bool, as_json: bool
) -> None:
    """List the children of the znode PATH by name, or with -r all paths below it."""

    async def work(client: "Client") -> list[str]:
        await _catch_up(client, path, wanted=sync_first)
        return await paths_below(client, path) if recursive else await client.get_children(path)

    names = connection.run(work)
    if as_json:
        print_json(names)
    elif names:
        click.echo("\n".join(names))


@click.command()
@click.argument("path", callback=checked_path)
@sync_first
@as_json
@connection_options
def get(connection: Connection, path: str, *, sync_first: bool, as_json: bool) -> None:
    """Print the data of the znode PATH, byte for byte; with --json also its stat."""

    async def work(client: "Client") -> tuple[bytes | None, Stat]:
        await _catch_up(client, path, wanted=sync_first)
        found = await client.get(path)
        return found.data, found.stat

    data, found_stat = connection.run(work)
    if as_json:
        print_json({"path": path, **text_or_base64(data), "stat": found_stat._asdict()})
    else:
        print_data(data)


@click.command(name="set")
@click.argument("path", callback=checked_path)
@click.argument("data", required=False)
@click.option("--data", "-f", "file", metavar="FILE", help="Read the data from a file, - is stdin.")
@expected_version
@as_json
@connection_options
def set_(
    connection: Connection,
    path: str,
    data: str | None,
    file: str | None,
    version: int,
    *,
    as_json: bool,
) -> None:
    """Replace the data of the znode PATH by DATA, by a file's content or by standard input."""
    if data is None and file is None:
        raise click.UsageError("say what to set: DATA, or --data FILE, where - is standard input")
    content = _content(data, file)
    changed = connection.run(lambda client: client.set(path, content, version=version))
    if as_json:
        print_json({"path": path, "stat": changed._asdict()})


@click.command()
@click.argument("path", callback=checked_path)
@click.argument("data", required=False)
@click.option("--data", "-f", "file", metavar="FILE", help="Read the data from a file, - is stdin.")
@click.option("-e", "ephemeral", is_flag=True, help="Lives until this command is interrupted.")
@click.option("-s", "sequential", is_flag=True, help="Append the parent's counter to the name.")
@click.option("-p", "parents", is_flag=True, help="Make missing parents too.")
@click.option("-c", "container", is_flag=True, help="Is removed after its last child is.")
@click.option("--ttl", type=float, metavar="SECS", help="Is removed when unchanged for so long.")
@click.option("--acl", multiple=True, metavar="SCHEME:ID:PERMS", help="As in world:anyone:cdrwa.")
@as_json
@connection_options
def create(
    connection: Connection,
    path: str,
    data: str | None,
    file: str | None,
    ttl: float | None,
    acl: tuple[str, ...],
    *,
    ephemeral: bool,
    sequential: bool,
    parents: bool,
    container: bool,
    as_json: bool,
) -> None:
    """Make the znode PATH and print its path.

    With -e the znode goes with the session, so the command stays until it is interrupted or the
    session is lost (exit status 75).
    """
    content = _content(data, file)
    entries = tuple(parse_acl(entry) for entry in acl) or None

    async def work(client: "Client") -> None:
        made = await client.create(
            path,
            content,
            acl=entries,
            ephemeral=ephemeral,
            sequential=sequential,
            container=container,
            ttl=ttl,
            make_parents=parents,
        )
        if as_json:
            print_json({"path": made})
        else:
            click.echo(made)
        if ephemeral:
            await _stay(client)

    connection.run(work)


@click.command()
@click.argument("path", callback=checked_path)
@click.option("-r", "recursive", is_flag=True, help="Remove everything below it first.")
@expected_version
@connection_options
def delete(connection: Connection, path: str, version: int, *, recursive: bool) -> None:
    """Remove the znode PATH."""
    if path == ROOT:
        raise CommandError("the root cannot be removed; name what is below it", ExitStatus.REFUSED)
    connection.run(lambda client: client.delete(path, version=version, recursive=recursive))


@click.command()
@click.argument("path", callback=checked_path)
@sync_first
@as_json
@connection_options
def stat(connection: Connection, path: str, *, sync_first: bool, as_json: bool) -> None:
    """Print the stat of the znode PATH, one field a line."""

    async def work(client: "Client") -> Stat:
        await _catch_up(client, path, wanted=sync_first)
        found = await client.exists(path)
        if found is None:
            raise NoNodeError(path=path, operation="stat")
        return found

    found = connection.run(work)
    if as_json:
        print_json({"path": path, **found._asdict()})
        return
    for name, value in found._asdict().items():
        click.echo(f"{name:<16}{value:#x}" if name in ZXID_FIELDS else f"{name:<16}{value}")


@click.command()
@click.argument("path", default=ROOT, callback=checked_path)
@connection_options
def sync(connection: Connection, path: str) -> None:
    """Wait until the member we are on has all that the leader had at the time of the call.

    This is about one member; a later command may be on another one. To read what is current, use
    --sync of the reading command.
    """

    async def work(client: "Client") -> str:
        await client.sync(path)
        return f"{client.server} has caught up with the leader, zxid {client.last_zxid:#x}"

    say(connection.run(work))


async def paths_below(client: "Client", path: str) -> list[str]:
    """Every path below a znode, sorted; what is removed meanwhile may be among them or not."""
    found: list[str] = []
    level = [path]
    # The znode itself has to be there; the rest may go while we walk.
    names = await client.get_children(path)
    children = [join(path, name) for name in names]
    while children:
        found += children
        level, children = children, []
        for start in range(0, len(level), WALK_BATCH):
            batch = level[start : start + WALK_BATCH]
            for parent, names in zip(
                batch, await asyncio.gather(*(_names(client, at) for at in batch)), strict=True
            ):
                children += [join(parent, name) for name in names]
    return sorted(found)


def parse_acl(text: str) -> Acl:
    """An entry as zkCli writes it: scheme, id (which may hold colons) and letters of ``cdrwa``."""
    scheme, _, rest = text.partition(":")
    identity, colon, letters = rest.rpartition(":")
    if not (scheme and colon and letters and set(letters) <= set(PERMISSION_LETTERS)):
        raise click.BadParameter(
            f"{text!r} is not SCHEME:ID:PERMS with PERMS of the letters cdrwa", param_hint="--acl"
        )
    perms = Perms(0)
    for letter in letters:
        perms |= PERMISSION_LETTERS[letter]
    return Acl(int(perms), scheme, identity)


async def _names(client: "Client", path: str) -> list[str]:
    try:
        return await client.get_children(path)
    except NoNodeError:
        return []


async def _catch_up(client: "Client", path: str, *, wanted: bool) -> None:
    if wanted:
        await client.sync(path)


def _content(data: str | None, file: str | None) -> bytes:
    if data is not None and file is not None:
        raise click.UsageError("DATA and --data FILE exclude each other")
    if file is None:
        return (data or "").encode()
    return read_file(file, "--data")


async def _stay(client: "Client") -> None:
    """Keep the session until a signal asks to end; raises if it is lost before."""
    from zabd.client import SessionState, StateChange

    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(*, lost: bool) -> None:
        if not ended.done():
            ended.set_result(lost)

    def notice(change: StateChange) -> None:
        if change.state is SessionState.LOST:
            end(lost=True)

    client.on_transition(notice)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, lambda: end(lost=False))
    if await ended:
        raise session_lost()
