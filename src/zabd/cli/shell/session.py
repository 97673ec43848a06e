"""The shell's commands on the connection, the ensemble and the shell itself."""

from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

from zabd.cli.shell.command import Arguments, number
from zabd.cli.shell.lines import LineError
from zabd.cli.shell.printer import data_document

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell


async def add_auth(shell: "Shell", args: Arguments) -> None:
    """Say who this connection is."""
    await shell.client.add_auth(args.words[0], args.words[1])


async def who_am_i(shell: "Shell", args: Arguments) -> None:
    """Who the member takes this connection for."""
    del args
    infos = await shell.client.who_am_i()
    if shell.out.as_json:
        shell.out.json([info._asdict() for info in infos])
    else:
        shell.out.line("\n".join(f"{info.scheme}: {info.user}" for info in infos))


async def config(shell: "Shell", args: Arguments) -> None:
    """The ensemble's configuration."""
    found = await shell.client.get_config(watch=shell.on_data if args.has("w") else None)
    data = client_config(found.data) if args.has("c") else found.data
    if shell.out.as_json:
        shell.out.json(data_document("/zookeeper/config", data, found.stat))
        return
    shell.out.data(data)
    if args.has("s"):
        shell.out.stat(found.stat)


async def reconfig(shell: "Shell", args: Arguments) -> None:
    """Change the ensemble's members."""
    members = args.value("members") or _member_file(args.value("file"))
    joining, leaving = (",".join(args.options.get(name, ())) or None for name in ("add", "remove"))
    if bool(members) == bool(joining or leaving):
        raise LineError("say either all -members (or a -file of them), or whom to -add or -remove")
    changed = await shell.client.reconfig(
        new_members=members,
        joining=joining,
        leaving=leaving,
        from_config=args.number("v", -1),
    )
    if shell.out.as_json:
        shell.out.json(data_document("/zookeeper/config", changed.data, changed.stat))
        return
    shell.out.data(changed.data)
    if args.has("s"):
        shell.out.stat(changed.stat)


async def connect(shell: "Shell", args: Arguments) -> None:
    """A new session, perhaps elsewhere."""
    await shell.connect(args.word(0))
    if not shell.out.as_json:
        shell.out.line(f"Connected to {shell.client.server}", fg="green")


async def close(shell: "Shell", args: Arguments) -> None:
    """End the session."""
    del args
    await shell.close()


async def version(shell: "Shell", args: Arguments) -> None:
    """The version of this program."""
    del args
    number_ = version_of("zabd")
    if shell.out.as_json:
        shell.out.json({"version": number_})
    else:
        shell.out.line(f"zabctl {number_}")


async def history(shell: "Shell", args: Arguments) -> None:
    """What was typed."""
    del args
    if shell.out.as_json:
        shell.out.json(shell.history.lines)
    else:
        shell.out.line("\n".join(f"{at} - {line}" for at, line in enumerate(shell.history.lines)))


async def redo(shell: "Shell", args: Arguments) -> None:
    """A line once more."""
    from zabd.cli.shell.lines import split

    at = number(args.words[0], "redo")
    if not 0 <= at < len(shell.history.lines):
        raise LineError(f"there is no line {at}; `history` lists them")
    words = split(shell.history.lines[at])
    if words[0] == "redo":
        raise LineError(f"line {at} is itself a redo")
    await shell.do(words)


async def quit_(shell: "Shell", args: Arguments) -> None:
    """Leave."""
    del args
    shell.ended = True


async def help_(shell: "Shell", args: Arguments) -> None:
    """What there is."""
    from zabd.cli.shell.table import COMMANDS

    name = args.word(0)
    if name is not None and name not in COMMANDS:
        raise LineError(f"there is no command {name!r}; `help` lists them")
    chosen = COMMANDS.values() if name is None else [COMMANDS[name]]
    if shell.out.as_json:
        shell.out.json([{"usage": each.usage, "help": each.help} for each in chosen])
        return
    for each in chosen:
        shell.out.line(each.usage, fg="green")
        shell.out.line(f"    {each.help}")


def client_config(data: bytes | None) -> bytes:
    """The configuration's version and where its members serve clients, on one line."""
    version_text, hosts = "", []
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key == "version":
            version_text = value
        elif key.startswith("server.") and ";" in value:
            hosts.append(value.rpartition(";")[2])
    return f"{version_text} {','.join(hosts)}".strip().encode()


def _member_file(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LineError(f"-file: {error}") from error
    return ",".join(line.strip() for line in lines if line.startswith("server.")) or None
