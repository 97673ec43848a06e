"""Stand-alone servers for as long as the tester needs them: Debian's ZooKeeper, and a zabd."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

JAR = Path("/usr/share/java/zookeeper.jar")
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
SUPER_PASSWORD = "super:secret"
START_SECONDS_MAX = 60.0
NEVER_MS = 2_000_000_000

# The tester is no judge of durability: without fsync it is ten times as fast. Nothing that happens
# by itself may happen while it looks, so the deletion of containers is put off for ever.
JAVA_PROPERTIES = {
    "zookeeper.forceSync": "no",
    "zookeeper.extendedTypesEnabled": "true",
    "zookeeper.enforceQuota": "true",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.snapCount": "100000000",
    "zookeeper.preAllocSize": "4096",
    "znode.container.checkIntervalMs": str(NEVER_MS),
}
ZABD_OPTIONS = {
    "maxClientCnxns": "0",
    "4lw.commands.whitelist": "*",
    "enforceQuota": "true",
    "znode.container.checkIntervalMs": str(NEVER_MS),
}


def is_installed() -> bool:
    """Whether there is anything to compare with."""
    return JAR.exists()


@contextmanager
def java_server(super_digest: str) -> Iterator[tuple[str, int]]:
    """Address and port of a ZooKeeper; it is stopped, and its data removed, at the end."""
    properties = {"zookeeper.DigestAuthenticationProvider.superDigest": super_digest}
    options = [f"-D{name}={value}" for name, value in (JAVA_PROPERTIES | properties).items()]
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", *options, "-cp", str(JAR), MAIN]

    def command(directory: Path, port: int) -> list[str]:
        config = directory / "zoo.cfg"
        config.write_text(
            f"tickTime=2000\ndataDir={directory}/data\nclientPortAddress=127.0.0.1\n"
            f"clientPort={port}\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n",
            encoding="utf-8",
        )
        return [*java, str(config)]

    with _server(command) as address:
        yield address


@contextmanager
def zabd_server(super_digest: str, data: Path | None = None) -> Iterator[tuple[str, int]]:
    """Address and port of a zabd; it is killed, and its data removed unless it is `data`."""
    keys = ZABD_OPTIONS | {"DigestAuthenticationProvider.superDigest": super_digest}
    options = [word for name, value in keys.items() for word in (f"--{name}", value)]

    def command(directory: Path, port: int) -> list[str]:
        where = ["--clientPort", str(port), "--clientPortAddress", "127.0.0.1"]
        where += ["--dataDir", str(data or directory / "data")]
        zabd = str(Path(sys.executable).with_name("zabd"))
        return [zabd, "--standalone", *where, *options]

    with _server(command) as address:
        yield address


@contextmanager
def _server(command: Callable[[Path, int], list[str]]) -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="zabd-differential-") as name:
        directory, port = Path(name), _free_port()
        with (directory / "console").open("wb") as console:
            process = subprocess.Popen(
                command(directory, port), stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        try:
            _wait_until_it_serves(process, port, directory / "console")
            yield "127.0.0.1", port
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_serves(process: subprocess.Popen[bytes], port: int, console: Path) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        if _answers(port):
            return
        time.sleep(0.1)
    said = console.read_text("utf-8", "replace")[-2000:]
    raise RuntimeError(f"the server does not serve; its last words: {said}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(b"srvr")
            return b"Mode:" in link.recv(65536)
    except OSError:
        return False
