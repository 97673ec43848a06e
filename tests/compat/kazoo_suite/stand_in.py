"""Stands in for `java` while kazoo's suite runs: the same command line becomes a `zabd`.

kazoo's harness writes a zoo.cfg and starts ``java -D... QuorumPeerMain zoo.cfg``. Nothing of it is
replaced: `zabd` reads that zoo.cfg, the system properties that mean something to it become
settings, and the process that the harness terminates and awaits is the daemon itself. Its log is
where the harness looks for one, and outlives the harness in ``COMPAT_LOGS``.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# The properties that are keys of the service; the others place Java's own log files.
PASSED_ON = (
    "java.security.auth.login.config=",
    "readonlymode.",
    "zookeeper.DigestAuthenticationProvider.",
    "znode.",
)


def zabd_arguments(java_arguments: Sequence[str]) -> list[str]:
    """What `zabd` is to be told instead."""
    config = java_arguments[java_arguments.index(MAIN) + 1]
    told = ["--config", config]
    for argument in java_arguments:
        setting = argument.removeprefix("-D")
        if setting != argument and setting.startswith(PASSED_ON):
            told += ["--set", setting]
    return told


def _log_to(home: Path) -> None:
    log = Path(os.environ["COMPAT_LOGS"], f"{home.name}.log")
    expected = home / "zookeeper.log"
    if not expected.exists():
        expected.symlink_to(log)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())


def main() -> None:
    """Become the daemon."""
    told = zabd_arguments(sys.argv[1:])
    _log_to(Path(told[1]).parent)
    daemon = shlex.split(os.environ["COMPAT_DAEMON"])
    os.environ.pop("PYTHONPATH", None)  # where pytest finds its plugin is no business of members
    os.execv(daemon[0], [*daemon, *told])  # noqa: S606 - it takes this process's place


if __name__ == "__main__":
    main()
