"""The shell itself: one connection, what was typed before, and a line done after another.

S1  A line that fails is told in one line on standard error; the shell goes on, and remembers
    the status of the first failure.
"""

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from zabd.cli.connection import Connection, status_of_error
from zabd.cli.output import ExitStatus
from zabd.cli.shell.history import History
from zabd.cli.shell.lines import LineError, check_words, split
from zabd.cli.shell.printer import Printer
from zabd.cli.shell.table import COMMANDS
from zabd.model.errors import BadArgumentsError, LocalProtocolError, ZabdError
from zabd.model.ids import format_session
from zabd.model.watch_events import EventType, WatchEvent

if TYPE_CHECKING:
    from zabd.client import Client, StateChange

_EVENT_NAMES = {
    EventType.CREATED: "NodeCreated",
    EventType.DELETED: "NodeDeleted",
    EventType.DATA_CHANGED: "NodeDataChanged",
    EventType.CHILDREN_CHANGED: "NodeChildrenChanged",
}


class Shell:
    """What the commands work on."""

    def __init__(
        self, connection: Connection, out: Printer, history: History, *, tell_state: bool = False
    ) -> None:
        self.connection = connection
        self.out = out
        self.history = history
        self.ended = False
        self.print_watches = True
        self.status = ExitStatus.OK
        self._tell_state = tell_state
        self._client: Client | None = None

    @property
    def client(self) -> "Client":
        """The client; LocalProtocolError when there is none."""
        if self._client is None:
            raise LocalProtocolError("not connected; `connect host:port` connects")
        return self._client

    @property
    def state(self) -> str:
        """A word for the prompt."""
        return "CLOSED" if self._client is None else self._client.state.name

    async def connect(self, server: str | None = None) -> None:
        """Open a session, to other servers if named; an older one is closed first."""
        from zabd.client.hosts import parse_connect_string

        if server is not None:
            try:
                parse_connect_string(server)
            except (ValueError, BadArgumentsError) as error:
                raise LineError(str(error)) from error
            self.connection = replace(self.connection, server=server)
        await self.close()
        client = self.connection.client()
        client.on_transition(self._on_state)
        await client.start()
        self._client = client

    async def close(self) -> None:
        """Close the session; nothing happens if there is none."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def run_line(self, line: str) -> None:
        """Do what a line says (S1)."""
        try:
            words = split(line)
            if words:
                self.history.add(line, secret=words[0] == "addauth")
                await self.do(words)
        except (ZabdError, click.UsageError) as error:
            self.failed(error)

    async def run_words(self, words: list[str]) -> None:
        """Do what words say that a real shell has split (S1)."""
        try:
            check_words(words)
            await self.do(words)
        except (ZabdError, click.UsageError) as error:
            self.failed(error)

    async def do(self, words: list[str]) -> None:
        """Do one command; failures raise."""
        command = COMMANDS.get(words[0])
        if command is None:
            close = get_close_matches(words[0][:100], COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else "`help` lists them"
            raise LineError(f"there is no command {words[0]!r}; {hint}")
        await command.run(self, command.parse(words[1:]))

    def failed(self, error: ZabdError | click.UsageError) -> None:
        """Tell a failure, and remember the first one's status."""
        if isinstance(error, click.UsageError):
            message, status = error.format_message(), ExitStatus.USAGE
        else:
            wrong = isinstance(error, LineError)
            message, status = str(error), ExitStatus.USAGE if wrong else status_of_error(error)
        self.out.error(message)
        self.status = self.status or status

    # Watchers: one for each kind, so that each can be forgotten without the others.

    def on_data(self, event: WatchEvent) -> None:
        """Watcher of data and existence."""
        self._print(event)

    def on_children(self, event: WatchEvent) -> None:
        """Watcher of children."""
        self._print(event)

    def on_any(self, event: WatchEvent) -> None:
        """Watcher of what stays watched."""
        self._print(event)

    def _print(self, event: WatchEvent) -> None:
        name = _EVENT_NAMES.get(EventType(event.type))
        if (
            name is None or not self.print_watches
        ):  # without one it is about the session, not a znode
            return
        if self.out.as_json:
            self.out.json({"event": name, "path": event.path})
        else:
            self.out.line(f"WATCHER: {name} {event.path}", fg="yellow")

    def _on_state(self, change: "StateChange") -> None:
        if self._tell_state and change.state.name != "CLOSED":
            session = format_session(change.session_id)
            self.out.note(f"session {session} is {change.state.name}: {change.reason}")
