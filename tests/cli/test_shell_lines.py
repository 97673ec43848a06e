import contextlib
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.cli.shell.command import Arguments
from zabd.cli.shell.lines import (
    LINE_BYTES_MAX,
    LineError,
    LineSplitter,
    check_words,
    decoded,
    one_line,
    split,
)
from zabd.cli.shell.table import COMMANDS
from zabd.model.errors import ZabdError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls /", ["ls", "/"]),
        ("  set /a 'two words' ", ["set", "/a", "two words"]),
        ('set /a "it\'s"', ["set", "/a", "it's"]),
        ("set /a two\\ words", ["set", "/a", "two words"]),
        ("set /a ''", ["set", "/a", ""]),
        ("set /a '#1'", ["set", "/a", "#1"]),
        ("# a comment", []),
        ("", []),
    ],
)
def test_a_line_is_quoted_as_in_a_shell(line: str, words: list[str]) -> None:
    """Whoever types knows these rules already."""
    assert split(line) == words


@given(st.lists(st.text(st.characters(min_codepoint=0xA0, codec="utf-8"), max_size=20), max_size=5))
def test_what_is_quoted_comes_back(words: list[str]) -> None:
    """So a script can quote any word."""
    assert split(shlex.join(["set", *words])) == ["set", *words]


@given(st.text("ab '\"\\\t/-", max_size=30))
def test_words_are_those_of_shlex(line: str) -> None:
    """Which does not do for long lines, but is right."""
    try:
        expected = shlex.split(line)
    except ValueError:
        with pytest.raises(LineError):
            split(line)
    else:
        assert split(line) == expected


@pytest.mark.parametrize("text", ["x", " x", "\\x", "''", '"x"', '\\"'])
def test_the_longest_line_is_read_quickly(text: str) -> None:
    """The session must not expire meanwhile; what takes long with length takes minutes here."""
    line = text * (LINE_BYTES_MAX // len(text))
    started = time.monotonic()
    with contextlib.suppress(LineError):
        split(line)
        split(f'"{line}')

    assert time.monotonic() - started < 20


@pytest.mark.parametrize("line", ["ls '/", 'get "', "get \\", "ls /\x00", "\x1b[2J", "ls \x7f"])
def test_what_cannot_be_read_is_one_error(line: str) -> None:
    """Quotes without an end, and control characters."""
    with pytest.raises(LineError):
        split(line)


@pytest.mark.parametrize("size", [1, 255, 256, 1024, 65536, LINE_BYTES_MAX])
def test_a_line_of_any_length_up_to_the_limit_is_read(size: int) -> None:
    """In whatever pieces it comes."""
    splitter = LineSplitter()
    pieces = [b"x" * min(65536, size - at) for at in range(0, size, 65536)]

    assert [line for piece in pieces for line in splitter.feed(piece)] == []
    assert splitter.feed(b"\nnext\n") == [b"x" * size, b"next"]


def test_a_longer_line_is_dropped_and_not_held() -> None:
    """CVE-2016-5017 was a buffer of 1,024 bytes in the C shell; this one ends at what is of use."""
    splitter = LineSplitter()
    for _ in range(256):
        assert splitter.feed(b"x" * 65536) == []
        assert len(splitter._part) <= LINE_BYTES_MAX

    assert splitter.feed(b"\nls /\n") == [None, b"ls /"]
    with pytest.raises(LineError, match="longer than"):
        decoded(None)


def test_the_last_line_needs_no_end() -> None:
    """``printf 'ls /' | zabctl shell`` works; so do lines from Windows."""
    splitter = LineSplitter()

    assert splitter.feed(b"ls /\r\nls /") == [b"ls /"]
    assert splitter.rest() == [b"ls /"]
    assert splitter.rest() == []


@given(st.binary(max_size=200))
def test_any_bytes_become_words_or_an_error(data: bytes) -> None:
    """And those words are arguments of each command, or its usage; nothing else is raised."""
    splitter = LineSplitter()
    lines_said = []
    for line in splitter.feed(data) + splitter.rest():
        try:
            words = split(decoded(line))
            for command in COMMANDS.values():
                command.parse(words)
        except ZabdError as error:
            lines_said.append(one_line(str(error)))
    assert all("\n" not in said for said in lines_said)


def test_words_that_are_no_utf_8_are_refused() -> None:
    """As Python shows them in the command line of a process."""
    with pytest.raises(LineError):
        check_words(["set", "/a", "\udcff"])
    with pytest.raises(LineError):
        check_words(["set", "/a", "x" * LINE_BYTES_MAX])


def parsed(line: str) -> Arguments:
    """Read the arguments of a whole line."""
    words = split(line)
    return COMMANDS[words[0]].parse(words[1:])


def test_options_may_stand_anywhere() -> None:
    """As in ZooKeeper's own command line."""
    for line in ("set -s -v 3 /a x", "set /a x -v 3 -s", "set -v=3 /a -s x"):
        arguments = parsed(line)
        assert (arguments.path, arguments.words[1]) == ("/a", "x")
        assert (arguments.has("s"), arguments.number("v", -1)) == (True, 3)


def test_a_number_or_what_stands_behind_two_dashes_is_no_option() -> None:
    """Data may look like anything."""
    assert parsed("set /a -5").words == ["/a", "-5"]
    assert parsed("set -- /a -s").words == ["/a", "-s"]
    assert parsed("set /a -v -1 x").number("v", 0) == -1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("get", "usage: get"),
        ("get /a b", "usage: get"),
        ("get -x /a", "no option -x"),
        ("get -s=1 /a", "no option -s=1"),
        ("set /a x -v", "-v needs a value"),
        ("set /a x -v y", "-v: 'y' is not a number"),
        ("set /a x -v 99999999999999999999", "is not a number"),
        ("get relative", "does not start with /"),
        ("get /a/../b", "paths are absolute"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_sent(line: str, said: str) -> None:
    """With the usage, or the rule that a path breaks."""
    with pytest.raises(ZabdError, match=None) as failure:
        parsed(line).number("v", -1)

    assert said in str(failure.value)


def test_every_command_of_zookeepers_command_line_is_there() -> None:
    """The list is what zkCli.sh 3.8 prints as its help."""
    theirs = """addWatch addauth close config connect create delete deleteall delquota get getAcl
    getAllChildrenNumber getEphemerals history listquota ls printwatches quit reconfig redo
    removewatches set setAcl setquota stat sync version whoami"""

    assert set(theirs.split()) <= set(COMMANDS)
    assert all(command.help.endswith(".") for command in COMMANDS.values())


def test_an_error_is_one_line_of_bounded_length() -> None:
    """Whatever it quotes."""
    shown = one_line("a\nb\x1b[2J" + "x" * 10_000)

    assert shown.startswith("a\\x0ab\\x1b[2J")
    assert len(shown) < 600
