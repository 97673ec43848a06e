import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from zabd.cli.connection import status_of_error
from zabd.cli.ctl import COMMANDS, cli
from zabd.cli.output import ExitStatus
from zabd.model.errors import (
    BadVersionError,
    ConnectionLossError,
    LocalProtocolError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    ZabdError,
)

ROOMS = ["client", "wire", "zab", "znode_tree", "replica", "storage", "server", "cluster_sim"]


def test_the_list_of_commands_imports_no_room() -> None:
    """`zabctl --help` is typed more often than anything else, and has to be quick."""
    program = (
        "import sys; from zabd.cli.ctl import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([room for room in {ROOMS!r} if f'zabd.{{room}}' in sys.modules], file=sys.stderr)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ended.stderr.strip() == "[]"
    assert all(f"  {name} " in ended.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    """A sentence about what it does, and each option with its help."""
    result = CliRunner().invoke(cli, [name, "--help"])

    assert result.exit_code == 0
    assert "Usage: " in result.output
    command = getattr(import_module(COMMANDS[name].module), COMMANDS[name].attribute)
    assert command.help
    options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
    assert [option.name for option in options if not option.help] == []


def test_the_exit_statuses_are_documented() -> None:
    """A script that calls us reads them in --help."""
    output = CliRunner().invoke(cli, ["--help"]).output

    for status in (ExitStatus.REFUSED, ExitStatus.NO_ENSEMBLE, ExitStatus.TRY_AGAIN):
        assert f"\n    {int(status)} " in output


def test_an_unknown_command_is_wrong_usage() -> None:
    """With status 2, as click does it everywhere."""
    assert CliRunner().invoke(cli, ["lss"]).exit_code == ExitStatus.USAGE


def test_a_path_that_no_server_takes_is_wrong_usage() -> None:
    """The rule it breaks is said without asking any server."""
    result = CliRunner().invoke(cli, ["get", "relative"])

    assert result.exit_code == ExitStatus.USAGE
    assert "relative" in result.output


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    """No traceback, and a status of its own: the command itself was done."""
    zabctl = Path(sys.executable).with_name("zabctl")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [zabctl, "sim", "bugs"], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert done.returncode == ExitStatus.OUTPUT
    assert done.stderr == b"zabctl: the output cannot be written: No space left on device\n"


def test_an_interrupted_command_says_so_as_a_shell_does() -> None:
    """130, which no refusal of the service can be taken for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        zabctl = Path(sys.executable).with_name("zabctl")
        command = [zabctl, "get", "/a", "--server", server]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == ExitStatus.INTERRUPTED


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_that_no_znode_can_have_is_wrong_usage(key: str) -> None:
    """Before anything is sent or run."""
    result = CliRunner().invoke(cli, ["dedup", key, "--", "true"])

    assert result.exit_code == ExitStatus.USAGE
    assert "a key has 1 to 255 bytes" in result.output


def test_no_member_is_one_line_and_a_status_of_its_own() -> None:
    """Nobody listens on port 1; the command says so and leaves no traceback."""
    result = CliRunner().invoke(cli, ["get", "/a", "--server", "127.0.0.1:1", "--timeout", "0.3"])

    assert result.exit_code == ExitStatus.NO_ENSEMBLE
    assert len(result.output.splitlines()) == 1
    assert result.output.startswith("zabctl: ")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OperationTimeoutError(operation="connect"), ExitStatus.NO_ENSEMBLE),
        (OperationTimeoutError(operation="create"), ExitStatus.TRY_AGAIN),
        (ConnectionLossError(), ExitStatus.TRY_AGAIN),
        (SessionExpiredError(), ExitStatus.TRY_AGAIN),
        (NoNodeError(), ExitStatus.REFUSED),
        (BadVersionError(), ExitStatus.REFUSED),
        (LocalProtocolError(), ExitStatus.REFUSED),
    ],
)
def test_an_unknown_outcome_is_told_from_a_refusal(error: ZabdError, status: ExitStatus) -> None:
    """75 invites to try again; 1 does not."""
    assert status_of_error(error) is status
