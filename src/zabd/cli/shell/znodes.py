"""The shell's commands on znodes: read, write and list them, and say who may."""

from typing import TYPE_CHECKING

from zabd.cli.commands.node import parse_acl, paths_below
from zabd.cli.shell.command import Arguments, number
from zabd.cli.shell.lines import LineError
from zabd.cli.shell.printer import acl_document, data_document
from zabd.model.acl import Acl
from zabd.model.errors import NoNodeError
from zabd.model.ops import Delete
from zabd.model.paths import ROOT
from zabd.model.results import Create2Result
from zabd.model.stat import Stat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zabd.cli.shell.shell import Shell

BATCH = 1000
# Half of what a request may have, so that a batch of the longest paths is still one.
BATCH_BYTES_MAX = 512 * 1024
ANY_VERSION = -1


async def ls(shell: "Shell", args: Arguments) -> None:
    """The children, or with -R everything below."""
    watch = shell.on_children if args.has("w") else None
    names, stat = await shell.client.get_children_with_stat(args.path, watch=watch)
    if args.has("R"):
        names = [args.path, *await paths_below(shell.client, args.path)]
    if shell.out.as_json:
        with_stat = {"children": names, "stat": stat._asdict()}
        shell.out.json(with_stat if args.has("s") else names)
        return
    if args.has("R"):
        shell.out.line("\n".join(names), fg="cyan")
    else:
        shell.out.names(names)
    if args.has("s"):
        shell.out.stat(stat)


async def get(shell: "Shell", args: Arguments) -> None:
    """The data."""
    found = await shell.client.get(args.path, watch=shell.on_data if args.has("w") else None)
    if shell.out.as_json:
        shell.out.json(data_document(args.path, found.data, found.stat))
        return
    shell.out.data(found.data)
    if args.has("s"):
        shell.out.stat(found.stat)


async def stat(shell: "Shell", args: Arguments) -> None:
    """The stat."""
    watch = shell.on_data if args.has("w") else None
    found = await shell.client.exists(args.path, watch=watch)
    if found is None:
        raise NoNodeError(path=args.path, operation="stat")
    _print_stat(shell, args, found, wanted=True)


async def set_(shell: "Shell", args: Arguments) -> None:
    """Replace the data."""
    version = args.number("v", ANY_VERSION)
    changed = await shell.client.set(args.path, args.words[1].encode(), version=version)
    _print_stat(shell, args, changed, wanted=args.has("s"))


async def create(shell: "Shell", args: Arguments) -> None:
    """Make a znode of any kind."""
    acl = args.word(2)
    made: Create2Result = await shell.client.create_with_stat(
        args.path,
        (args.word(1) or "").encode(),
        acl=None if acl is None else parse_acls(acl),
        ephemeral=args.has("e"),
        sequential=args.has("s"),
        container=args.has("c"),
        ttl=_ttl_s(args),
    )
    if shell.out.as_json:
        shell.out.json({"path": made.path, "stat": made.stat._asdict()})
    else:
        shell.out.line(f"Created {made.path}", fg="green")


async def delete(shell: "Shell", args: Arguments) -> None:
    """Remove a znode."""
    await shell.client.delete(args.path, version=args.number("v", ANY_VERSION))


async def deleteall(shell: "Shell", args: Arguments) -> None:
    """Remove a znode and everything below it, in multis of so many deletes."""
    if args.path == ROOT:
        raise LineError("the root cannot be removed; name what is below it")
    size = args.number("b", BATCH)
    if size < 1:
        raise LineError("-b: a batch has at least one delete")
    below = await paths_below(shell.client, args.path)
    # Sorted, a znode stands before all that is below it; backwards, behind.
    for batch in batches([*reversed(below), args.path], size):
        try:
            await shell.client.multi([Delete(path) for path in batch])
        except NoNodeError:
            await _delete_each(shell, batch)  # somebody else deletes here too


async def sync(shell: "Shell", args: Arguments) -> None:
    """Catch up with the leader."""
    await shell.client.sync(args.path)
    if shell.out.as_json:
        shell.out.json({"path": args.path, "zxid": shell.client.last_zxid})
    else:
        shell.out.line("Sync is OK", fg="green")


async def get_acl(shell: "Shell", args: Arguments) -> None:
    """The ACL."""
    found = await shell.client.get_acl(args.path)
    if shell.out.as_json:
        document = {"path": args.path, "acl": acl_document(found.acl)}
        shell.out.json({**document, "stat": found.stat._asdict()})
        return
    shell.out.acl(found.acl)
    if args.has("s"):
        shell.out.stat(found.stat)


async def set_acl(shell: "Shell", args: Arguments) -> None:
    """Replace the ACL, with -R that of everything below too."""
    acl, version = parse_acls(args.words[1]), args.number("v", ANY_VERSION)
    below = await paths_below(shell.client, args.path) if args.has("R") else []
    changed = await shell.client.set_acl(args.path, acl, version=version)
    for path in below:
        try:
            await shell.client.set_acl(path, acl, version=version)
        except NoNodeError:
            continue  # removed meanwhile
    _print_stat(shell, args, changed, wanted=args.has("s"))


async def get_ephemerals(shell: "Shell", args: Arguments) -> None:
    """This session's ephemerals."""
    found = sorted(await shell.client.get_ephemerals(args.path))
    shell.out.json(found) if shell.out.as_json else shell.out.names(found)


async def get_all_children_number(shell: "Shell", args: Arguments) -> None:
    """How many there are below."""
    total = await shell.client.count_descendants(args.path)
    shell.out.json(total) if shell.out.as_json else shell.out.line(str(total))


def parse_acls(text: str) -> tuple[Acl, ...]:
    """Entries separated by commas, each as in world:anyone:cdrwa."""
    return tuple(parse_acl(entry) for entry in text.split(","))


def batches(paths: list[str], count_max: int) -> "Iterator[list[str]]":
    """Cut a list into batches of so many paths at most, each small enough for one request."""
    batch: list[str] = []
    size = 0
    for path in paths:
        cost = 4 * len(path) + 32  # a character has at most four bytes
        if batch and (len(batch) >= count_max or size + cost > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += cost
    if batch:
        yield batch


async def _delete_each(shell: "Shell", paths: list[str]) -> None:
    for path in paths:
        try:
            await shell.client.delete(path)
        except NoNodeError:
            continue


def _ttl_s(args: Arguments) -> float | None:
    text = args.value("t")
    if text is None:
        return None
    # The client takes seconds and cuts to whole ms: half a one more keeps each where it was.
    return (number(text, "-t") + 0.5) / 1000


def _print_stat(shell: "Shell", args: Arguments, found: Stat, *, wanted: bool) -> None:
    if shell.out.as_json:
        shell.out.json({"path": args.path, "stat": found._asdict()})
    elif wanted:
        shell.out.stat(found)
