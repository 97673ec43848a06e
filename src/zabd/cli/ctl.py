"""`zabctl`: everything that an operator or a user types, but for the daemon itself.

Only the command that is asked for is imported: ``zabctl --help`` reads none of the rooms.
"""

import importlib
from collections.abc import Sequence
from typing import NamedTuple

import click

from zabd.cli.output import EXIT_HELP, CommandError, ExitStatus, leave_output_alone, say
from zabd.model.errors import ZabdError


class LazyCommand(NamedTuple):
    """Where a command is, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


_NODE = "zabd.cli.commands.node"


COMMANDS: dict[str, LazyCommand] = {
    "ls": LazyCommand(_NODE, "ls", "List the children of a znode."),
    "get": LazyCommand(_NODE, "get", "Print a znode's data."),
    "set": LazyCommand(_NODE, "set_", "Replace a znode's data."),
    "create": LazyCommand(_NODE, "create", "Make a znode and print its path."),
    "delete": LazyCommand(_NODE, "delete", "Remove a znode, with -r everything below it too."),
    "stat": LazyCommand(_NODE, "stat", "Print a znode's stat."),
    "sync": LazyCommand(_NODE, "sync", "Wait until the member has caught up with the leader."),
    "watch": LazyCommand(
        "zabd.cli.commands.watch", "watch", "Print a znode's changes as they come."
    ),
    "quota": LazyCommand(
        "zabd.cli.commands.quota", "quota", "Show, set or end the quota on a znode."
    ),
    "shell": LazyCommand(
        "zabd.cli.commands.shell", "shell", "Type ZooKeeper's commands, or pipe them in."
    ),
    "four": LazyCommand(
        "zabd.cli.commands.four", "four", "Send a four-letter word to each member."
    ),
    "status": LazyCommand("zabd.cli.commands.status", "status", "Show how each member is."),
    "lock": LazyCommand("zabd.cli.commands.lock", "lock", "Run a command while holding a lock."),
    "dedup": LazyCommand(
        "zabd.cli.commands.dedup", "dedup", "Run a command once per key, replay its outcome."
    ),
    "demo": LazyCommand("zabd.cli.commands.demo", "demo", "Kill a leader under load, and judge."),
    "bench": LazyCommand(
        "zabd.cli.commands.bench", "bench", "Measure an ensemble: rate, latency, CPU."
    ),
    "sim": LazyCommand(
        "zabd.cli.commands.sim", "sim", "Run members under faults, in simulated time."
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and lists it without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a newcomer meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        del ctx
        if (entry := COMMANDS.get(cmd_name)) is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), f"{cmd_name} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; turn what zabd raises on purpose into one line and a status."""
        try:
            return super().invoke(ctx)
        except ZabdError as error:
            raise CommandError(str(error), _status_of(error)) from error
        except KeyboardInterrupt:
            raise SystemExit(ExitStatus.INTERRUPTED) from None


@click.group(cls=LazyGroup, epilog=EXIT_HELP, context_settings={"show_default": True})
@click.version_option(package_name="zabd", prog_name="zabctl")
def cli() -> None:
    """Work with a zabd or ZooKeeper ensemble.

    Every command that talks to one takes --server HOSTS, as in host:2181,host:2182/chroot; without
    it the environment's ZABD_SERVER counts, and without that the default ensemble on this machine.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the installed command."""
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="zabctl")
    except OSError as error:
        # Click knows a reader that went away; this is a full disk or the like.
        say(f"the output cannot be written: {error.strerror}")
        leave_output_alone()
        raise SystemExit(ExitStatus.OUTPUT) from error


def _status_of(error: ZabdError) -> ExitStatus:
    from zabd.cli.connection import status_of_error

    return status_of_error(error)
