"""The systems that are compared, and how each is started here."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from etcd_load import EtcdLoad
from kit import START_TIMEOUT_S, say
from tests.compat import java_zookeeper

from zabd.cli.load import Load
from zabd.cli.members import Ensemble, MemberError, daemon_command
from zabd.cli.ports import LOOPBACK

ZOOKEEPER: Final = "ZooKeeper"
ETCD: Final = "etcd"
ZABD: Final = "zabd"
PLAIN: Final = "zabd, plain asyncio"
JAVA_HEAP: Final = "1000m"
POLL_S: Final = 0.05


def commands() -> dict[str, list[str] | None]:
    """What can be started on this machine."""
    found: dict[str, list[str] | None] = {}
    jars = all((java_zookeeper.JARS / jar).exists() for jar in java_zookeeper.CLASSPATH_JARS)
    if jars and shutil.which("java"):
        found[ZOOKEEPER] = [sys.executable, str(Path(java_zookeeper.__file__).resolve())]
    else:
        say(f"no ZooKeeper here: it needs Debian's {' '.join(java_zookeeper.PACKAGES)}")
    if shutil.which("etcd"):
        found[ETCD] = [sys.executable, str(Path(__file__).with_name("etcd_member.py"))]
    else:
        say("no etcd here: it needs Debian's etcd-server")
    try:
        import uvloop  # noqa: F401, PLC0415 - is it there?
    except ImportError:
        say("no uvloop here: zabd runs on asyncio's own loop alone")
    else:
        found[ZABD] = None
    found[PLAIN] = [*daemon_command(), "--no-uvloop"]
    return found


@contextmanager
def started(name: str, command: list[str] | None, count: int = 3) -> Iterator[Ensemble]:
    """Members of one system, which serve."""
    os.environ.setdefault("JAVA_HEAP", JAVA_HEAP)
    with (
        TemporaryDirectory(prefix="zabd-compare-") as folder,
        Ensemble(Path(folder), voters=count, command=command) as ensemble,
    ):
        if name == ETCD:
            for member in ensemble.members:
                member.start()
            _wait_healthy(ensemble)
        else:
            ensemble.start(timeout_s=START_TIMEOUT_S)
        yield ensemble


def hosts_of(ensemble: Ensemble) -> list[tuple[str, int]]:
    """Where its members are; etcd says nothing in words, so all are taken to run."""
    return [(LOOPBACK, member.client_port) for member in ensemble.members]


def load_of(name: str) -> type[Load] | type[EtcdLoad]:
    """What speaks its protocol."""
    return EtcdLoad if name == ETCD else Load


def _wait_healthy(ensemble: Ensemble) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(_healthy(member.client_port) for member in ensemble.members):
        if time.monotonic() > deadline:
            raise MemberError(f"etcd does not serve\n{ensemble.logs()}")
        time.sleep(POLL_S)


def _healthy(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), 1) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b'"health":"true"' in answer
