"""Claims about the `zabd` command: what it takes, what it refuses, and how it says so."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from zabd.cli import daemon
from zabd.server.keys import KEYS
from zabd.server.resolution import Resolved

PATIENCE_S = 20


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def invoke(*args: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and everything that was printed; no member is started."""
    result = CliRunner().invoke(daemon.command, list(args), env=env)
    return result.exit_code, result.output


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Resolved]:
    """What would have been run."""
    runs: list[Resolved] = []

    def run(resolved: Resolved, *, as_json: bool, use_uvloop: bool) -> int:
        runs.append(resolved)
        return 0

    monkeypatch.setattr(daemon, "run", run)
    return runs


def test_every_key_is_an_option_with_its_environment_variable() -> None:
    """The help is the reference: it names each key once."""
    code, text = invoke("--help")

    assert code == 0
    for key in KEYS:
        assert f"--{key.name}" in text
        assert key.environment in text.replace("\n", "").replace(" ", "")


def test_the_port_for_prometheus_has_a_short_option(resolved: list[Resolved]) -> None:
    """And the long one, which is its name, wins."""
    invoke("--standalone", "--metrics-port", "7001")
    invoke("--standalone", "--metrics-port", "7001", "--metricsProvider.httpPort", "7002")

    assert [run.config.metrics_port for run in resolved] == [7001, 7002]


def test_the_command_line_wins(resolved: list[Resolved], tmp_path: Path) -> None:
    """Over the environment, which wins over the file."""
    file = tmp_path / "zoo.cfg"
    file.write_text("tickTime=100\ninitLimit=20\nserver.1=a:1:2;3\n")
    env = {"ZABD_TICKTIME": "101", "ZABD_INITLIMIT": "21", "ZABD_CONFIG": str(file)}
    args = ["--tickTime", "102", "--server.2", "b:1:2;3", "--server.3=c:1:2;3", "--id", "2"]
    code, _ = invoke(*args, "--set", "syncLimit=7", env=env)

    assert code == 0
    config = resolved[0].config
    assert (config.tick_ms, config.init_limit, config.sync_limit) == (102, 21, 7)
    assert config.voters == (1, 2, 3)
    assert config.me.host == "b"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ([], "zabd: which member is this? Give --id, one of 1, 2, 3, or dataDir/myid"),
        (["--id", "9"], "zabd: command line, --id: 9 is no member of the ensemble"),
        (["--config", "/no/such/file"], "zabd: cannot read /no/such/file: No such file"),
        (["--standalone", "--set", "tickTime"], "zabd: command line: --set tickTime is not KEY="),
        (["--standalone", "--tickTime", "x"], "zabd: command line, --tickTime: tickTime=x is not"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_one_sentence(
    args: list[str], complaint: str
) -> None:
    """No traceback; the exit code tells a supervisor that trying again is of no use."""
    code, text = invoke(*args)

    assert code == daemon.EXIT_CONFIG
    assert complaint in text
    assert text.count("\n") == 1


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """Bytes that are no text are not a configuration."""
    file = tmp_path / "zoo.cfg"
    file.write_bytes(b"\xff\xfe")

    code, text = invoke("--config", str(file))

    assert code == daemon.EXIT_CONFIG
    assert text.startswith(f"zabd: {file} is not a text in UTF-8")


@contextmanager
def member(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A real member; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zabd.cli.daemon", *args],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], event: str) -> str:
    """The line of the first such event."""
    assert process.stderr is not None
    for line in process.stderr:
        if f"event={event} " in line:
            return line
    raise AssertionError(f"it ended without {event}")


@pytest.mark.ensemble
def test_sigterm_stops_a_member_in_order(tmp_path: Path) -> None:
    """Exit code 0, and the log says that it was asked to."""
    with member(
        "--standalone", "--dataDir", str(tmp_path / "d"), "--clientPort", str(free_port())
    ) as process:
        wait_for(process, "started")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        rest = process.stderr.read()

        assert process.wait(PATIENCE_S) == 0
        assert "event=stopped" in rest
        assert "Traceback" not in rest


@pytest.mark.ensemble
def test_a_busy_port_and_a_busy_directory_have_their_own_codes(tmp_path: Path) -> None:
    """One line each, saying which, and no traceback."""
    port = str(free_port())
    directory = str(tmp_path / "d")
    with member("--standalone", "--dataDir", directory, "--clientPort", port) as first:
        wait_for(first, "started")
        other = str(tmp_path / "e")
        with member("--standalone", "--dataDir", other, "--clientPort", port) as second:
            line = wait_for(second, "ended")
            assert second.wait(PATIENCE_S) == daemon.EXIT_ADDRESS
            assert f"cannot listen on the client port 127.0.0.1:{port}" in line
        free = str(free_port())
        with member("--standalone", "--dataDir", directory, "--clientPort", free) as third:
            line = wait_for(third, "ended")
            assert third.wait(PATIENCE_S) == daemon.EXIT_DIRECTORY
            assert directory in line


@pytest.mark.ensemble
def test_the_checks_cannot_be_optimised_away() -> None:
    """Assertions are what stops a member before a bug becomes lost data."""
    result = subprocess.run(
        [sys.executable, "-O", "-m", "zabd.cli.daemon", "--standalone"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert result.returncode == daemon.EXIT_CONFIG
    assert "python -O" in result.stderr


@pytest.mark.ensemble
def test_an_address_that_has_no_name_is_said_in_words(tmp_path: Path) -> None:
    """The resolver's own reason, where the system's table of errors has none."""
    voters = [
        f"--server.{n}=nowhere.invalid:{free_port()}:{free_port()};{free_port()}" for n in "12"
    ]
    with member("--id", "1", "--dataDir", str(tmp_path / "d"), *voters) as process:
        line = wait_for(process, "ended")
        assert process.wait(PATIENCE_S) == daemon.EXIT_ADDRESS
        assert "nowhere.invalid" in line
        assert "Unknown error" not in line
