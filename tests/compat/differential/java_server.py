"""The reference: a stand-alone ZooKeeper of Debian's package, while the tester needs it."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JAR = Path("/usr/share/java/zookeeper.jar")
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
SUPER_PASSWORD = "super:secret"
START_SECONDS_MAX = 60.0

# The tester is no judge of durability: without fsync it is ten times as fast. Nothing that happens
# by itself may happen while it looks, so the deletion of containers is put off for ever.
PROPERTIES = {
    "zookeeper.forceSync": "no",
    "zookeeper.extendedTypesEnabled": "true",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.snapCount": "100000000",
    "znode.container.checkIntervalMs": "2000000000",
    "zookeeper.preAllocSize": "4096",
}


def is_installed() -> bool:
    """Whether there is anything to compare with."""
    return JAR.exists()


@contextmanager
def java_server(super_digest: str) -> Iterator[tuple[str, int]]:
    """Its address and port; it is stopped, and its data removed, at the end."""
    with tempfile.TemporaryDirectory(prefix="zabd-differential-") as directory:
        port = _free_port()
        config = Path(directory, "zoo.cfg")
        config.write_text(
            f"tickTime=2000\ndataDir={directory}/data\nclientPortAddress=127.0.0.1\n"
            f"clientPort={port}\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n",
            encoding="utf-8",
        )
        properties = PROPERTIES | {
            "zookeeper.DigestAuthenticationProvider.superDigest": super_digest
        }
        options = [f"-D{name}={value}" for name, value in properties.items()]
        command = ["java", "-Xmx512m", "-XX:+UseSerialGC", *options, "-cp", str(JAR), MAIN]
        with Path(directory, "console").open("wb") as console:
            process = subprocess.Popen(
                [*command, str(config)], stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        try:
            _wait_until_it_serves(process, port, Path(directory, "console"))
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
    raise RuntimeError(f"the Java server does not serve; its last words: {said}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(b"srvr")
            return b"Mode:" in link.recv(65536)
    except OSError:
        return False
