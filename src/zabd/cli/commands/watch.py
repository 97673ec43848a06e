"""`zabctl watch`: what happens to a znode, as it happens.

A watch tells that something changed, not what; so each wake-up looks at the znode again, sets the
watches again in the same requests, and tells the difference to the look before. A lost session or
a missed wake-up can therefore merge changes, and never hide the last one.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

import click

from zabd.cli.connection import Connection, checked_path, connection_options
from zabd.cli.output import print_json, say, text_or_base64
from zabd.model.errors import NoNodeError
from zabd.model.stat import Stat

if TYPE_CHECKING:
    from zabd.client import Client


class Look(NamedTuple):
    """What a znode was like at one moment; `stat` is None where there was none."""

    stat: Stat | None
    data: bytes | None = None
    children: tuple[str, ...] = ()


class Change(NamedTuple):
    """One difference between two looks."""

    event: str  # created, changed, deleted, children
    look: Look
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@click.command()
@click.argument("path", callback=checked_path)
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per change.")
@connection_options
def watch(connection: Connection, path: str, count: int | None, *, as_json: bool) -> None:
    """Print each change of the znode PATH: created, changed, deleted, children come and gone.

    The znode need not exist yet. Changes in quick succession may show as one, the last of them.
    Ends when interrupted.
    """

    async def work(client: "Client") -> None:
        printed = 0
        async for change in changes(client, path):
            click.echo(_line(path, change)) if not as_json else print_json(_document(path, change))
            printed += 1
            if printed == count:
                return

    try:
        connection.run(work)
    except KeyboardInterrupt:
        raise SystemExit(0) from None


async def changes(client: "Client", path: str) -> AsyncIterator[Change]:
    """The changes of a znode from now on, through reconnections and new sessions."""
    from zabd.client import SessionState, StateChange

    woken = asyncio.Event()

    def on_state(change: StateChange) -> None:
        if change.state is SessionState.CONNECTED:
            woken.set()  # perhaps a new session, which has none of the old one's watches

    remove = client.on_transition(on_state)
    try:
        before = await _look(client, path, woken)
        say(_greeting(path, before))
        while True:
            await woken.wait()
            woken.clear()
            now = await _look(client, path, woken)
            for change in differences(before, now):
                yield change
            before = now
    finally:
        remove()


def differences(before: Look, now: Look) -> list[Change]:
    """What happened between two looks, as far as they tell."""
    if now.stat is None:
        return [] if before.stat is None else [Change("deleted", now)]
    if before.stat is None or before.stat.czxid != now.stat.czxid:
        return [Change("created", now, added=now.children)]
    found: list[Change] = []
    if before.stat.mzxid != now.stat.mzxid:
        found.append(Change("changed", now))
    added = tuple(name for name in now.children if name not in before.children)
    removed = tuple(name for name in before.children if name not in now.children)
    if added or removed:
        found.append(Change("children", now, added, removed))
    return found


async def _look(client: "Client", path: str, woken: asyncio.Event) -> Look:
    def wake(_: object) -> None:
        woken.set()

    while True:
        try:
            found = await client.get(path, watch=wake)
            children = await client.get_children(path, watch=wake)
            return Look(found.stat, found.data, tuple(children))
        except NoNodeError:
            if await client.exists(path, watch=wake) is None:
                return Look(None)


def _greeting(path: str, look: Look) -> str:
    if look.stat is None:
        return f"watching {path}, which does not exist"
    return f"watching {path}, version {look.stat.version}, {len(look.children)} children"


def _line(path: str, change: Change) -> str:
    stat = change.look.stat
    if stat is None:
        return f"{change.event} {path}"
    if change.event == "children":
        names = [f"+{name}" for name in change.added] + [f"-{name}" for name in change.removed]
        return " ".join([change.event, path, *names])
    return f"{change.event} {path} version {stat.version} zxid {stat.mzxid:#x}"


def _document(path: str, change: Change) -> dict[str, object]:
    stat = change.look.stat
    return {
        "event": change.event,
        "path": path,
        **text_or_base64(change.look.data),
        "added": change.added,
        "removed": change.removed,
        "stat": None if stat is None else stat._asdict(),
    }
