"""`zabctl` in the hands of a test: what a script would run, and what becomes of processes."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from zabd.cli.ctl import cli
from zabd.cli.members import clean_environment

ZABCTL = [sys.executable, "-c", "from zabd.cli.ctl import main; main()"]
PATIENCE_S = 30.0


class Script:
    """What a shell script would do: run a command, look at its output and status."""

    def __init__(self, hosts: str) -> None:
        self.environment = {**clean_environment(), "ZABD_SERVER": hosts}

    def run(
        self, *arguments: str, data: bytes | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end; in this process, to save a start, unless it starts others."""
        in_process = "--" not in arguments
        ended = self._here(arguments, data) if in_process else self._there(arguments, data)
        assert ended.returncode == status, ended.stdout + ended.stderr
        assert b"Traceback" not in ended.stderr
        return ended

    def _here(
        self, arguments: Sequence[str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        result = CliRunner(env=self.environment).invoke(cli, list(arguments), input=data)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    def _there(
        self, arguments: Sequence[str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*ZABCTL, *arguments],
            input=data,
            capture_output=True,
            env=self.environment,
            timeout=PATIENCE_S,
            check=False,
        )

    def output(self, *arguments: str, data: bytes | None = None, status: int = 0) -> str:
        return self.run(*arguments, data=data, status=status).stdout.decode()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*ZABCTL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


def state_of(pid: int) -> str:
    """The process's state: R, S, T for stopped, Z; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return ""
    return stat.rpartition(")")[2].split()[0]
