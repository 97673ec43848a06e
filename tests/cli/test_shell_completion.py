import asyncio
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from zabd.cli.connection import Connection
from zabd.cli.shell.completion import candidates
from zabd.cli.shell.history import LINES_MAX, History, history_file
from zabd.cli.shell.printer import Printer
from zabd.cli.shell.shell import Shell
from zabd.cli.shell.terminal import ShellCompleter, prompt
from zabd.model.errors import NoNodeError

TREE = {"/": ["app", "apple", "zookeeper"], "/app": ["a b", "one"], "/app/one": []}


async def children_of(path: str) -> list[str]:
    """Stand in for the ensemble."""
    if path not in TREE:
        raise NoNodeError(path=path)
    return TREE[path]


def completed(before: str) -> list[str]:
    """The whole texts that would stand there."""
    found = asyncio.run(candidates(before, children_of))
    return [before[: len(before) - each.replaces] + each.text for each in found]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("getA", ["getAcl", "getAllChildrenNumber"]),
        ("ls /ap", ["ls /app", "ls /apple"]),
        ("ls -s /app/", ["ls -s '/app/a b'", "ls -s /app/one"]),
        ("ls /", ["ls /app", "ls /apple", "ls /zookeeper"]),
        ("ls /nowhere/x", []),
        ("set -", ["set -s", "set -v"]),
        ("set /app -v", ["set /app -v"]),
        ("help redo", ["help redo"]),
        ("addauth /", []),
        ("nonsense /", []),
        ("get ", []),
    ],
)
def test_commands_options_and_paths_are_completed(before: str, after: list[str]) -> None:
    """From the table of commands, and from the ensemble."""
    assert completed(before) == after


def test_an_empty_line_offers_every_command() -> None:
    """With what each is for."""
    found = asyncio.run(candidates("", children_of))

    assert {"ls", "quit"} <= {each.text for each in found}
    assert all(each.meaning for each in found)


def a_shell() -> Shell:
    """Make one without a session."""
    connection = Connection("127.0.0.1:1", 0.2, 4.0, ())
    return Shell(connection, Printer(as_json=False), History())


def test_prompt_toolkit_is_offered_the_same() -> None:
    """In its own terms; without a connection paths are not offered, and nothing fails."""

    async def offered(text: str) -> list[tuple[str, int]]:
        completer = ShellCompleter(a_shell())
        answers = completer.get_completions_async(Document(text), CompleteEvent())
        return [(each.text, each.start_position) async for each in answers]

    assert asyncio.run(offered("delq")) == [("delquota", -4)]
    assert asyncio.run(offered("ls /")) == []


def test_the_prompt_says_where_one_is() -> None:
    """And that there is no session."""
    assert prompt(a_shell()) == "[127.0.0.1:1(CLOSED)] "


def test_history_outlives_the_shell_but_no_secret_does(tmp_path: Path) -> None:
    """The file is the user's alone."""
    file = tmp_path / "state" / "history"
    history = History(file)
    history.add("ls /")
    history.add("addauth digest ada:secret", secret=True)
    history.add("set /a " + "x" * 100_000)

    assert History(file).earlier == ["ls /"]
    assert history.lines[1:] == ["addauth", "set"]
    assert file.stat().st_mode & 0o077 == 0


def test_history_keeps_the_last_lines(tmp_path: Path) -> None:
    """However long it is used."""
    file = tmp_path / "history"
    file.write_text("".join(f"get /{n}\n" for n in range(3 * LINES_MAX)), "utf-8")

    assert len(History(file).earlier) == LINES_MAX
    assert len(file.read_text("utf-8").splitlines()) == LINES_MAX


def test_history_without_a_home_is_none(tmp_path: Path) -> None:
    """The shell works where nothing can be written."""
    (tmp_path / "taken").write_text("", "utf-8")
    history = History(tmp_path / "taken" / "history")
    history.add("ls /")

    assert history.lines == ["ls /"]


def test_history_is_where_states_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the XDG base directories say."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "zabd" / "shell_history"
