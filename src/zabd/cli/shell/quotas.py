"""The shell's commands on quotas: soft limits warn, hard ones (-N, -B) refuse."""

from typing import TYPE_CHECKING

from zabd.cli.shell.command import Arguments, number
from zabd.cli.shell.lines import LineError
from zabd.model.errors import NoNodeError
from zabd.model.quotas import NO_LIMITS

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell

NO_LIMIT = -1
_FIELDS = {"n": "znodes", "b": "size_bytes", "N": "znodes_hard", "B": "size_bytes_hard"}


async def list_quota(shell: "Shell", args: Arguments) -> None:
    """The limits and the usage."""
    from zabd.client.quotas import get_quota

    found = await get_quota(shell.client, args.path)
    if found is None:
        raise NoNodeError(f"there is no quota on {args.path}", path=args.path)
    limits, usage = found
    if shell.out.as_json:
        document = {"limits": limits._asdict(), "usage": usage._asdict()}
        shell.out.json({"path": args.path, **document})
        return
    shell.out.line(f"quota of {args.path}: {limits.text.decode()}")
    shell.out.line(f"usage of {args.path}: {usage.text.decode()}")


async def set_quota(shell: "Shell", args: Arguments) -> None:
    """Set the limits that are named; the others stay."""
    from zabd.client.quotas import get_quota, set_quota

    wanted = {
        name: max(NO_LIMIT, number(text, f"-{letter}"))
        for letter, name in _FIELDS.items()
        if (text := args.value(letter)) is not None
    }
    if not wanted:
        raise LineError("say which limit: -n, -b, -N or -B with its value")
    found = await get_quota(shell.client, args.path)
    limits = (found.limits if found else NO_LIMITS)._replace(**wanted)
    await set_quota(shell.client, args.path, limits)


async def delete_quota(shell: "Shell", args: Arguments) -> None:
    """End the limits that are named, or the whole quota."""
    from zabd.client.quotas import delete_quota, get_quota, set_quota

    found = await get_quota(shell.client, args.path)
    if found is None:
        raise NoNodeError(f"there is no quota on {args.path}", path=args.path)
    chosen = {name: NO_LIMIT for letter, name in _FIELDS.items() if args.has(letter)}
    if chosen:
        await set_quota(shell.client, args.path, found.limits._replace(**chosen))
    else:
        await delete_quota(shell.client, args.path)
