"""Bad input: a hostile client loses its connection, a bad start is one clear error."""

import os
import random
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import QuotaExceededError
from tests.ensemble.harness import OTHER_DAEMON, kazoo, lay_out, serving, wait_until

from zabd.cli.members import Ensemble, Member, clean_environment, daemon_command
from zabd.cli.ports import LOOPBACK, free_ports
from zabd.cli.words import Reachability

pytestmark = pytest.mark.ensemble

CONNECT = struct.pack(">iqiqi16s?", 0, 0, 10_000, 0, 16, bytes(16), False)
EXIT_WITHIN_S = 15.0


def frame(body: bytes) -> bytes:
    """A body with its length in front."""
    return struct.pack(">i", len(body)) + body


def request(xid: int, opcode: int, body: bytes = b"") -> bytes:
    """A request's frame."""
    return frame(struct.pack(">ii", xid, opcode) + body)


class RawClient:
    """Bytes to a member's client port, and what comes back."""

    def __init__(self, member: Member) -> None:
        self.socket = socket.create_connection((LOOPBACK, member.client_port), 10)
        self.socket.settimeout(10)

    def handshake(self) -> None:
        self.socket.sendall(frame(CONNECT))
        assert len(self.reply()) >= 36

    def reply(self) -> bytes:
        [length] = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def error_of_reply(self) -> int:
        _, _, error = struct.unpack(">iqi", self.reply()[:16])
        return int(error)

    def is_closed(self) -> bool:
        """Wait for the end; whatever comes before it is dropped."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk, "the member closed the connection"
            data += chunk
        return data


@pytest.fixture
def raw(shared: Ensemble) -> Iterator[RawClient]:
    """A raw connection to a member; afterwards a well-behaved client still gets its answers."""
    client = RawClient(shared.member(1))
    with kazoo(shared.member(1).address) as bystander:
        bystander.ensure_path("/bystander")
        yield client
        client.socket.close()
        assert bystander.set("/bystander", b"x").version >= 1
        assert bystander.connected
    assert all(member.running for member in shared.members)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: zabd\r\n\r\n", id="http"),
        pytest.param(bytes.fromhex("16030100f8010000f40303") + bytes(240), id="tls-hello"),
        pytest.param(random.Random(1).randbytes(65536), id="random"),
        pytest.param(struct.pack(">i", -1), id="negative-length"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="huge-length"),
        pytest.param(struct.pack(">i", 0), id="no-length"),
        pytest.param(frame(b"too short"), id="too-short-to-be-a-connect"),
    ],
)
def test_what_is_no_handshake_closes_the_connection(raw: RawClient, data: bytes) -> None:
    """Nothing is allocated for it, nothing is answered."""
    raw.socket.sendall(data)

    assert raw.is_closed()


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 64 * 2**20])
def test_a_bad_length_after_the_handshake_closes_the_connection(
    raw: RawClient, length: int
) -> None:
    """The session lives on; it may come back on another connection."""
    raw.handshake()
    raw.socket.sendall(struct.pack(">iii", length, 1, 4))

    assert raw.is_closed()


@pytest.mark.parametrize("opcode", [0, -1, 24, 99, 2**31 - 1, -10])
def test_an_unknown_opcode_is_answered(raw: RawClient, opcode: int) -> None:
    """Unimplemented, so that a client may probe for a feature; what is internal is unknown too."""
    raw.handshake()
    raw.socket.sendall(request(1, opcode))

    assert raw.error_of_reply() == -6


def test_a_body_that_is_no_record_is_answered(raw: RawClient) -> None:
    """A path longer than its frame: MarshallingError, and the connection stays."""
    raw.handshake()
    raw.socket.sendall(request(1, 4, struct.pack(">i", 1000) + b"/a"))
    assert raw.error_of_reply() == -5

    raw.socket.sendall(request(2, 3, struct.pack(">i", 1) + b"/" + b"\0"))
    assert raw.error_of_reply() == 0


def test_garbage_on_the_peer_ports_concerns_nobody(shared: Ensemble) -> None:
    """The ports between members are open to the same abuse."""
    config = shared.member(1).config.read_text(encoding="utf-8")
    own = next(line for line in config.splitlines() if line.startswith("server.1="))
    ports = [int(port) for port in own.partition(";")[0].split(":")[1:3]]
    with kazoo(shared.hosts) as bystander:
        bystander.ensure_path("/peer-bystander")
        before = bystander.get("/peer-bystander")[1].version
        for port in ports:
            for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(4096), struct.pack(">i", 2**31 - 1), b""):
                with socket.create_connection((LOOPBACK, port), 5) as connection:
                    connection.sendall(data)
            bystander.set("/peer-bystander", b"x")
        assert bystander.get("/peer-bystander")[1].version == before + len(ports)
        assert bystander.client_state == "CONNECTED"
    assert all(member.running for member in shared.members)


# Bad starts.


def run_daemon(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a member that should refuse to; its exit status and what it printed."""
    command = [*(OTHER_DAEMON or daemon_command()), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=EXIT_WITHIN_S,
        env=clean_environment(),
    )


def assert_one_clear_error(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    """It ended with a failure; one line says why, and there is no traceback."""
    printed = ended.stderr + ended.stdout
    assert ended.returncode not in {0, None}
    assert "Traceback" not in printed
    lines = [line for line in printed.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, printed


def standalone_config(folder: Path, *lines: str, port: int | None = None) -> Path:
    """A zoo.cfg of an ensemble of one, with more lines."""
    path = folder / "zoo.cfg"
    text = [
        f"dataDir={folder / 'data'}",
        f"clientPort={port or free_ports(1)[0]}",
        f"clientPortAddress={LOOPBACK}",
        *lines,
    ]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("tickTime=soon", "tickTime"),
        ("tickTime=-5", "tickTime"),
        ("server.1=somewhere", "server.1"),
        ("server.x=h:1:2", "server.x"),
    ],
)
def test_a_bad_configuration_names_line_key_and_value(tmp_path: Path, line: str, word: str) -> None:
    """The operator is told where to look."""
    config = standalone_config(tmp_path, line)

    ended = run_daemon("--config", str(config), "--id", "1")

    assert_one_clear_error(ended, word, str(config), "4")


def test_a_configuration_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    """Not a traceback of open()."""
    ended = run_daemon("--config", str(tmp_path / "absent.cfg"), "--id", "1")

    assert_one_clear_error(ended, "absent.cfg")


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    """Somebody else listens there already."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        config = standalone_config(tmp_path, port=port)

        ended = run_daemon("--config", str(config), "--id", "1")

    assert_one_clear_error(ended, str(port))


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    """What a directory without permission is for anybody but root."""
    config = standalone_config(tmp_path)
    (tmp_path / "data").write_text("not a directory")

    ended = run_daemon("--config", str(config), "--id", "1")

    assert_one_clear_error(ended, str(tmp_path / "data"))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Read-only by its mode, or for root by its immutable attribute where the system has one."""
    data = tmp_path / "data"
    data.mkdir()
    config = standalone_config(tmp_path)
    with unwritable(data):
        ended = run_daemon("--config", str(config), "--id", "1")

    assert_one_clear_error(ended, str(data))


def test_a_running_members_directory_is_not_shared(tmp_path: Path) -> None:
    """A second process on the same directory, under other ports, must not touch it."""
    with serving(tmp_path, voters=1) as ensemble:
        member = ensemble.member(1)
        other = tmp_path / "other"
        other.mkdir()
        text = member.config.read_text(encoding="utf-8")
        busy = other / "zoo.cfg"
        busy.write_text(text.replace(str(member.client_port), str(free_ports(1)[0])))

        ended = run_daemon("--config", str(busy), "--id", "1")

        assert_one_clear_error(ended, str(member.data))
        with kazoo(ensemble.hosts) as client:
            client.create("/still-served")


def test_another_members_directory_is_refused(tmp_path: Path) -> None:
    """Two members with one history of votes would break the quorum's promise."""
    with serving(tmp_path) as ensemble:
        first, second, _ = ensemble.members
        second.kill()
        first.kill()
        shutil.rmtree(second.data)
        shutil.copytree(first.data, second.data)

        second.start()
        status = second.wait(timeout_s=EXIT_WITHIN_S)

        assert status != 0
        assert "Traceback" not in second.log_tail()
        assert str(second.data) in second.log_tail()
        first.start()
        ensemble.wait_serving([first, ensemble.member(3)])


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    """Its history is of another tree; nobody else is disturbed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serving(tmp_path / "a") as ours:
        with serving(tmp_path / "b", voters=3) as theirs:
            pass
        stranger = ours.member(2)
        stranger.kill()
        shutil.rmtree(stranger.data)
        shutil.copytree(theirs.member(2).data, stranger.data)

        stranger.start()
        wait_until(
            lambda: not stranger.running or "cluster" in stranger.log_tail(), "it to be refused"
        )

        assert "cluster" in stranger.log_tail()
        assert stranger.status().reachability is not Reachability.SERVING
        with kazoo(ours.member(1).address) as client:
            client.create("/still-served")


@pytest.mark.slow
def test_a_follower_with_a_full_disk_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    """One clear error; what was acknowledged is there on the other two."""
    with small_disk(tmp_path / "3" / "data"), lay_out(tmp_path) as ensemble:
        ensemble.start()
        full = ensemble.member(3)
        if ensemble.wait_leader() is full:
            full.kill()
            ensemble.wait_leader(other_than=full)
            full.start()
            ensemble.wait_serving()
        acknowledged = 0
        with kazoo(ensemble.member(1).address) as client:
            client.create("/full")
            while full.running and acknowledged < 400:
                client.create(f"/full/{acknowledged:03d}", os.urandom(500_000))
                acknowledged += 1
            client.sync("/full")
            assert len(client.get_children("/full")) == acknowledged

        assert not full.running
        assert "No space left on device" in full.log_tail()
        assert "Traceback" not in full.log_tail()


@pytest.mark.slow
def test_a_leader_short_of_space_refuses_writes_in_time(tmp_path: Path) -> None:
    """While it can still log deletes; reads go on, and nothing that was acknowledged is missing."""
    with small_disk(tmp_path / "1" / "data"), serving(tmp_path, voters=1) as ensemble:
        acknowledged = 0
        with kazoo(ensemble.hosts) as client:
            with pytest.raises(QuotaExceededError):
                while acknowledged < 400:
                    client.create(f"/{acknowledged:03d}", os.urandom(500_000))
                    acknowledged += 1
            if acknowledged:
                client.delete("/000")
        ensemble.member(1).kill()
        ensemble.member(1).start()
        ensemble.wait_serving()
        with kazoo(ensemble.hosts) as client:
            found = set(client.get_children("/"))

        assert found == {"zookeeper", *(f"{number:03d}" for number in range(1, acknowledged))}


def system(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of the operating system."""
    return subprocess.run(command, check=False, capture_output=True, text=True)


class unwritable:  # noqa: N801 - used like a function
    """A directory that nobody may write to, root included, for the length of a block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._attribute = os.geteuid() == 0

    def __enter__(self) -> None:
        if not self._attribute:
            self._folder.chmod(0o500)
            return
        if shutil.which("chattr") is None or self._chattr("+i") != 0:
            pytest.skip("LOUDLY: root writes everywhere here, and chattr +i is not to be had")

    def __exit__(self, *_: object) -> None:
        if self._attribute:
            self._chattr("-i")
        else:
            self._folder.chmod(0o700)

    def _chattr(self, change: str) -> int:
        return system("chattr", change, str(self._folder)).returncode


class small_disk:  # noqa: N801 - used like a function
    """A file system of 150 MiB on a directory, for the length of a block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def __enter__(self) -> None:
        mounted = system("mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", str(self._folder))
        if mounted.returncode != 0:
            pytest.skip(f"LOUDLY: no small file system can be mounted: {mounted.stderr.strip()}")

    def __exit__(self, *_: object) -> None:
        # A killed member's files are closed a moment later.
        deadline = time.monotonic() + 5
        while system("umount", str(self._folder)).returncode:
            assert time.monotonic() < deadline, "the small file system stays busy"
            time.sleep(0.05)
