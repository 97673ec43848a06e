"""The shell at a terminal with prompt-toolkit (the extra `shell`): history, search, completion."""

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from zabd.cli.shell.completion import candidates
from zabd.cli.shell.loops import interruptible

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell

# Who presses Tab does not wait longer than this for a member.
COMPLETION_TIMEOUT_S = 1.0


class ShellCompleter(Completer):
    """Asks `completion.candidates`."""

    def __init__(self, shell: "Shell") -> None:
        self._shell = shell

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Nothing: the shell's loop asks in the other way."""
        del document, complete_event
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """The candidates for the text before the cursor."""
        del complete_event
        for each in await candidates(document.text_before_cursor, self._children_of):
            yield Completion(each.text, -each.replaces, display_meta=each.meaning)

    async def _children_of(self, path: str) -> list[str]:
        return await self._shell.client.get_children(path, timeout=COMPLETION_TIMEOUT_S)


async def run_terminal(shell: "Shell") -> None:
    """Do each line until Ctrl-D or `quit`; Ctrl-C drops the line."""
    history = InMemoryHistory()
    for line in shell.history.earlier:
        history.append_string(line)
    session: PromptSession[str] = PromptSession(
        history=history, completer=ShellCompleter(shell), complete_while_typing=False
    )
    # What comes while somebody types (watches) is printed above the prompt.
    with patch_stdout(raw=True):
        while not shell.ended:
            try:
                line = await session.prompt_async(lambda: prompt(shell))
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            await interruptible(shell, shell.run_line(line))


def prompt(shell: "Shell") -> str:
    """Where the shell is connected, and whether it is."""
    return f"[{shell.connection.server}({shell.state})] "
