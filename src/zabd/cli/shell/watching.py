"""The shell's commands on watches."""

from typing import TYPE_CHECKING

from zabd.cli.shell.command import Arguments
from zabd.cli.shell.lines import LineError
from zabd.model.errors import KeeperError
from zabd.model.watch_events import WatcherType

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell

MODES = {"PERSISTENT": False, "PERSISTENT_RECURSIVE": True}
_KINDS = {"c": WatcherType.CHILDREN, "d": WatcherType.DATA, "a": WatcherType.ANY}


async def add_watch(shell: "Shell", args: Arguments) -> None:
    """A watch that stays."""
    mode = args.value("m") or "PERSISTENT_RECURSIVE"
    if mode not in MODES:
        raise LineError(f"-m: expected one of {', '.join(MODES)}, not {mode!r}")
    await shell.client.add_watch(args.path, shell.on_any, recursive=MODES[mode])


async def remove_watches(shell: "Shell", args: Arguments) -> None:
    """End watches, with -l in the shell also where no member can be asked."""
    chosen = [name for name in _KINDS if args.has(name)]
    if len(chosen) > 1:
        raise LineError("-c, -d and -a exclude each other")
    kind = _KINDS[chosen[0] if chosen else "a"]
    try:
        await shell.client.remove_watches(args.path, kind)
    except KeeperError:
        if not args.has("l"):
            raise
    if kind is not WatcherType.CHILDREN:
        shell.client.unwatch(args.path, shell.on_data)
    if kind is not WatcherType.DATA:
        shell.client.unwatch(args.path, shell.on_children)
    if kind is WatcherType.ANY:
        shell.client.unwatch(args.path, shell.on_any)


async def print_watches(shell: "Shell", args: Arguments) -> None:
    """Whether events are printed."""
    match args.word(0):
        case "on" | "off" as word:
            shell.print_watches = word == "on"
        case None:
            word = "on" if shell.print_watches else "off"
            if shell.out.as_json:
                shell.out.json({"printwatches": shell.print_watches})
            else:
                shell.out.line(f"printwatches is {word}")
        case other:
            raise LineError(f"printwatches is on or off, not {other!r}")
