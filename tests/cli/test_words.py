import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zabd.cli.words import Reachability, ask, mode_of, parse_mntr, status_of

LEADER = (
    "Zookeeper version: 3.8.0-0, built on 2024-12-29 17:54 UTC\nLatency min/avg/max: 0/1.5/9\n"
    "Received: 2\nSent: 1\nConnections: 1\nOutstanding: 0\nZxid: 0x500000007\nMode: leader\n"
    "Node count: 5\n"
)
MNTR = "zk_version\t3.8.0\nzk_global_sessions\t4\nzk_avg_latency\t1.5\nno tab here\n"
NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"


@contextmanager
def member(answers: dict[str, str]) -> Iterator[int]:
    """A listener that answers words as told; an unknown word is left without an answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                word = connection.recv(4).decode()
                connection.sendall(answers.get(word, "").encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_members_status_is_read_from_its_words() -> None:
    """The role and zxid from `srvr`, everything else from `mntr`."""
    with member({"srvr": LEADER, "mntr": MNTR}) as port:
        status = status_of("127.0.0.1", port)
        mode = mode_of("127.0.0.1", port)

    assert (status.reachability, status.mode, mode) == (Reachability.SERVING, "leader", "leader")
    assert (status.zxid, status.epoch) == (0x500000007, 5)
    assert status.number("global_sessions") == 4
    assert status.number("absent") is None
    assert status.keys["zk_avg_latency"] == "1.5"


def test_a_member_without_a_quorum_does_not_serve() -> None:
    """It answers, so it is neither down nor frozen."""
    with member({"srvr": NOT_SERVING}) as port:
        status = status_of("127.0.0.1", port)
        mode = mode_of("127.0.0.1", port)

    assert status.reachability is Reachability.NOT_SERVING
    assert mode is None


def test_nobody_listens_means_down() -> None:
    """The operating system says so at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert status_of("127.0.0.1", port).reachability is Reachability.DOWN
    assert mode_of("127.0.0.1", port) is None


def test_a_frozen_member_is_silent() -> None:
    """Its kernel still takes connections; no word is answered."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        status = status_of("127.0.0.1", frozen.getsockname()[1], timeout_s=0.1)

    assert status.reachability is Reachability.SILENT
    assert "0.1 s" in status.detail


def test_somebody_else_on_the_port_is_no_member() -> None:
    """What it said is shown, as far as one line goes."""
    with member({"srvr": "HTTP/1.1 400 Bad Request\r\n\r\n"}) as port:
        status = status_of("127.0.0.1", port)

    assert status.reachability is Reachability.SILENT
    assert "HTTP/1.1 400" in status.detail


def test_an_unreachable_member_raises_where_its_answer_is_wanted() -> None:
    """`ask` is for those who cannot go on without."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(OSError, match="refused"):
        ask("127.0.0.1", port, "ruok")


def test_mntr_lines_without_a_tab_are_left_out() -> None:
    """Later servers may say more than we know."""
    assert parse_mntr(MNTR) == {
        "zk_version": "3.8.0",
        "zk_global_sessions": "4",
        "zk_avg_latency": "1.5",
    }
