"""Claims about connect strings and the search for a server."""

from random import Random

import pytest

from zabd.client.chroot import Chroot
from zabd.client.hosts import PAUSE_MS_MAX, Host, HostList, parse_connect_string
from zabd.model.errors import BadArgumentsError
from zabd.model.ops import Create, Exists, Multi, WhoAmI


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk", [("zk", 2181)], "/"),
        ("zk:99", [("zk", 99)], "/"),
        ("a:1, b:2 ,c/app/one", [("a", 1), ("b", 2), ("c", 2181)], "/app/one"),
        ("a:1/", [("a", 1)], "/"),
        ("[::1]:7,[fe80::2],::3/x/", [("::1", 7), ("fe80::2", 2181), ("::3", 2181)], "/x"),
    ],
)
def test_connect_strings(text: str, hosts: list[tuple[str, int]], chroot: str) -> None:
    """As every ZooKeeper client takes them, IPv6 included."""
    parsed = parse_connect_string(text)
    assert parsed.hosts == tuple(Host(*host) for host in hosts)
    assert parsed.chroot == chroot


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/app",
        "a:b",
        "a:0",
        "a:70000",
        ":2181",
        "a:1,b:",
        ":x:",
        "::x",
        "[zk]:1",
        "[::1]7",
        "[::1",
    ],
)
def test_a_bad_connect_string_is_named(text: str) -> None:
    """The error quotes what was given."""
    with pytest.raises(ValueError, match="connect string"):
        parse_connect_string(text)


def test_a_bad_chroot_is_refused() -> None:
    """Before a connection is made."""
    with pytest.raises(BadArgumentsError):
        parse_connect_string("a:1/x//y")


def test_hosts_are_shown_as_they_are_written() -> None:
    """So that a log line can be pasted back."""
    assert [str(Host("zk", 1)), str(Host("::1", 2))] == ["zk:1", "[::1]:2"]


def test_the_order_is_shuffled_once_and_then_a_ring() -> None:
    """A fleet spreads over the ensemble, and each client tries every server."""
    hosts = [Host(name, 1) for name in "abc"]
    firsts = {HostList(hosts, Random(seed)).next().name for seed in range(50)}
    assert firsts == {"a", "b", "c"}
    ring = HostList(hosts, Random(1))
    order = [ring.next() for _ in range(6)]
    assert set(order[:3]) == set(hosts)
    assert order[:3] == order[3:]


def test_each_fruitless_round_is_followed_by_a_longer_pause_with_chance_in_it() -> None:
    """Clients that lost the same server must not come back in step, nor hammer it."""
    ring = HostList([Host("a", 1), Host("b", 1)], Random(1))
    pauses = [ring.failed() for _ in range(20)]
    assert pauses[::2] == [0] * 10
    rounds = pauses[1::2]
    assert 20 <= rounds[0] <= 40
    assert all(PAUSE_MS_MAX / 2 <= pause <= PAUSE_MS_MAX for pause in rounds[5:])
    assert len(set(rounds[5:])) > 1
    ring.succeeded()
    assert [ring.failed(), ring.failed()][0] == 0


def test_a_chroot_goes_on_and_comes_off() -> None:
    """Whatever is outside of it is left as it is."""
    chroot = Chroot("/app")
    assert [chroot.to_server(p) for p in ("/", "/a")] == ["/app", "/app/a"]
    assert [chroot.to_user(p) for p in ("/app", "/app/a", "/apple", "/b")] == [
        "/",
        "/a",
        "/apple",
        "/b",
    ]
    assert chroot.op(Exists("/a", True)) == Exists("/app/a", True)
    assert chroot.op(Multi((Create("/a", b"", None),))) == Multi((Create("/app/a", b"", None),))
    assert chroot.op(WhoAmI()) == WhoAmI()
    assert not Chroot()
    assert Chroot().to_user("/a") == Chroot().to_server("/a") == "/a"
