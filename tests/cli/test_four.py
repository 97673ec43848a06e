import json
import socket

import pytest
from click.testing import CliRunner, Result
from tests.cli.test_words import member

from zabd.cli.ctl import cli
from zabd.cli.output import ExitStatus


def four(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["four", *arguments])


def free_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_one_members_answer_is_printed_as_it_is() -> None:
    """Without a header, so that a script can read it; a newline ends it."""
    with member({"ruok": "imok"}) as port:
        result = four("ruok", "--server", f"127.0.0.1:{port}")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "imok\n", "")


def test_several_members_answers_have_headers() -> None:
    """In the order of the command line; who does not answer is named on standard error."""
    with member({"ruok": "imok"}) as first, member({"ruok": "imok\n"}) as second:
        hosts = f"127.0.0.1:{second},{free_address()},127.0.0.1:{first}"
        result = four("ruok", "--server", hosts)
        strict = four("ruok", "--server", hosts, "--all")

    assert result.stdout == f"--- 127.0.0.1:{second}\nimok\n--- 127.0.0.1:{first}\nimok\n"
    assert len(result.stderr.splitlines()) == 1
    assert (result.exit_code, strict.exit_code) == (ExitStatus.OK, ExitStatus.REFUSED)


def test_json_is_text_by_member() -> None:
    """One object."""
    with member({"mntr": "zk_a\t1\n"}) as port:
        result = four("mntr", "--json", "--server", f"127.0.0.1:{port}")

    assert json.loads(result.stdout) == {f"127.0.0.1:{port}": "zk_a\t1\n"}


def test_no_answer_is_a_failure() -> None:
    """Nobody there, a member that is silent, and one that closes the connection on the word."""
    with member({}) as port, socket.create_server(("127.0.0.1", 0)) as frozen:
        silent = f"127.0.0.1:{frozen.getsockname()[1]}"
        for host in (free_address(), silent, f"127.0.0.1:{port}"):
            result = four("srvr", "--server", host, "--timeout", "0.2")
            assert result.exit_code == ExitStatus.NO_ENSEMBLE
            assert result.stdout == ""
            assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["srv"], ["srvrs"], ["ääää"], ["ruok", "--server", ":x"]])
def test_what_is_no_word_is_wrong_usage(arguments: list[str]) -> None:
    """Anything else would be garbage to a member."""
    assert four(*arguments).exit_code == ExitStatus.USAGE
