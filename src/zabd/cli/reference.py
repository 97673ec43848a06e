"""Writes the reference of `zabctl` from its own help: ``python -m zabd.cli.reference``."""

from collections.abc import Iterator

import click

from zabd.cli.ctl import cli

WIDTH = 96


def reference() -> str:
    """The page, as markdown."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield "# zabctl"
    yield ""
    yield "Written by `python -m zabd.cli.reference` from the commands' own help."
    yield from _section(cli, ["zabctl"])


def _section(command: click.Command, names: list[str]) -> Iterator[str]:
    with click.Context(command, info_name=" ".join(names), terminal_width=WIDTH) as ctx:
        ctx.show_default = True
        yield ""
        yield f"## {' '.join(names)}"
        yield ""
        yield "```text"
        yield command.get_help(ctx)
        yield "```"
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None, f"{name} is listed"
                yield from _section(below, [*names, name])


if __name__ == "__main__":
    click.echo(reference())
