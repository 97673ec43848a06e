"""Claims about the four-letter words: the recorded answers of ZooKeeper, from the same values."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from zabd.model.ids import SessionId
from zabd.server import four_letter
from zabd.server.config import ServerConfig, default_members
from zabd.server.four_letter import WORDS, ConnectionReport, Spread, answer, version_line
from zabd.server.keys import READ_ONLY_WORDS
from zabd.server.zoo_cfg import Setting, parse_member

VECTORS = {
    record["name"]: record["response_text"]
    for record in map(
        json.loads,
        (Path(__file__).parents[1] / "wire" / "vectors" / "four_letter_words.jsonl")
        .read_text("utf-8")
        .splitlines(),
    )
}
RECORDED_VERSION = "3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC"
DATA = "/tmp/zookeeper/flw/1/data/version-2"  # noqa: S108
ENSEMBLE = tuple(
    parse_member(Setting(f"server.{number}", spec, "vectors"))
    for number, spec in enumerate(
        [
            "127.0.0.1:28910:29910:participant;127.0.0.1:27910",
            "127.0.0.1:28911:29911:participant;127.0.0.1:27911",
            "127.0.0.1:28912:29912:participant;127.0.0.1:27912",
            "127.0.0.1:28913:29913:observer;127.0.0.1:27913",
        ],
        1,
    )
)


@dataclass
class Values:
    """A Report of given values."""

    config: ServerConfig = field(
        default_factory=lambda: ServerConfig(
            member_id=1, members=default_members(1), data_dir="/d", words=None
        )
    )
    serving: bool = True
    read_only: bool = False
    damaged: str | None = None
    mode: str = "standalone"
    zxid: int = 3
    node_count: int = 7
    latency_ms: Spread = field(default_factory=lambda: Spread(0, 0, 0))
    packets: tuple[int, int] = (1, 1)
    outstanding: int = 0
    proposal_sizes: tuple[int, int, int] | None = None
    links: Sequence[ConnectionReport] = ()
    resets: list[str] = field(default_factory=list)
    expiring: Sequence[tuple[int, Sequence[SessionId]]] | None = None

    def connections(self) -> Sequence[ConnectionReport]:
        return self.links

    def expiries(self) -> Sequence[tuple[int, Sequence[SessionId]]] | None:
        return self.expiring

    def sessions(self) -> Sequence[tuple[SessionId, int]]:
        return [(0x100003094DD0000, 10_000)]

    def ephemerals(self) -> Sequence[tuple[SessionId, Sequence[str]]]:
        return [(0x1000030730F0000 if self.expiring else 0x100003094DD0000, ["/fl/e"])]

    def watches_by_session(self) -> Sequence[tuple[SessionId, Sequence[str]]]:
        return [(0x1000030730F0000, ["/flabsent", "/fl"])]

    def watches_by_path(self) -> Sequence[tuple[str, Sequence[SessionId]]]:
        return [("/flabsent", [0x1000030730F0000]), ("/fl", [0x1000030730F0000])]

    def watch_summary(self) -> tuple[int, int, int]:
        return 1, 2, 2

    def digests(self) -> Sequence[tuple[int, int]]:
        return [(0x100000080, 1_371_985_504)]

    def directory_sizes(self) -> tuple[int, int]:
        return 67_109_337, 67_109_337

    def monitor(self) -> list[tuple[str, object]]:
        return [
            ("avg_latency", 7.83333333),
            ("max_latency", 19),
            ("connection_drop_probability", 0.0),
        ]

    def environment(self) -> list[tuple[str, str]]:
        return [("host.name", "h"), ("java.version", "x")]

    def reset_server(self) -> None:
        self.resets.append("server")

    def reset_connections(self) -> None:
        self.resets.append("connections")


def recorded(name: str) -> str:
    """What ZooKeeper answered, with our version in the place of its own."""
    return str(VECTORS[name]).replace(RECORDED_VERSION, version_line())


def config(**more: object) -> ServerConfig:
    """The configuration of the recorded servers."""
    base = ServerConfig(
        member_id=1,
        members=default_members(1),
        data_dir=DATA,
        client_port=27910,
        connections_per_address_max=0,
        backlog=-1,
        words=None,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def test_srvr_is_word_for_word() -> None:
    """Monitoring programs match these lines with patterns older than most of their users."""
    assert answer("srvr", Values()) == recorded("standalone.srvr").replace(
        "Connections: 2", "Connections: 0"
    )
    leader = Values(zxid=0x100000003, mode="leader", proposal_sizes=(-1, -1, -1))
    assert answer("srvr", leader) == recorded("leader.srvr").replace(
        "Connections: 2", "Connections: 0"
    )


def test_stat_lists_the_clients_after_the_version() -> None:
    """The runbook's `echo stat | nc host 2181 | grep Received` depends on the lines after them."""
    links = [
        ConnectionReport("/127.0.0.1:33126", True, 0, 0, 0),
        ConnectionReport("/127.0.0.1:33244", False, 0, 1, 0),
    ]

    assert answer("stat", Values(links=links, packets=(2, 2))) == recorded("standalone.stat")


def test_a_read_only_member_says_so_above_everything_else() -> None:
    """Its clients cannot write, and the first line after the version tells."""
    values = Values(
        mode="read-only",
        read_only=True,
        latency_ms=Spread(1, 5.0, 10),
        packets=(13, 11),
        outstanding=4,
        zxid=0x100000001,
        node_count=6,
        links=[ConnectionReport("/127.0.0.1:1", True, 0, 0, 0)],
    )

    assert answer("srvr", values) == recorded("read-only.srvr")
    assert answer("isro", values) == "ro"


def test_cons_shows_the_session_of_each_connection() -> None:
    """One line per connection, then an empty line; without a session only the counts."""
    links = [
        ConnectionReport(
            "/127.0.0.1:33126",
            reading=True,
            queued=0,
            received=6,
            sent=6,
            session_id=0x1000030730F0000,
            last_op="EXIS",
            established_ms=1796050085782,
            timeout_ms=10_000,
            last_xid=5,
            last_zxid=3,
            last_response_ms=3_175_777,
            latency_ms=Spread(0, 7.5, 19),
        ),
        ConnectionReport("/127.0.0.1:33132", False, 0, 1, 0),
    ]

    assert answer("cons", Values(links=links)) == recorded("standalone.cons")


def test_conf_of_a_standalone_member_and_of_an_ensemble() -> None:
    """The ensemble's answer ends with its membership and without a line end."""
    assert answer("conf", Values(config())) == recorded("standalone.conf").replace(
        "serverId=0", "serverId=1"
    )
    follower = recorded("follower.conf").replace("67109581", "67109337")
    assert answer("conf", Values(config(members=ENSEMBLE))) == follower


def test_dump_at_the_leader_and_at_a_follower() -> None:
    """The leader knows when sessions expire, a follower only that they are there."""
    links = [
        ConnectionReport("/127.0.0.1:33158", True, 0, 0, 0),
        ConnectionReport("/127.0.0.1:33126", True, 0, 0, 0, session_id=0x1000030730F0000),
    ]
    leading = Values(links=links, expiring=[(1_796_050_096_000, [0x1000030730F0000])])
    without_idle_deadlines = re.compile(r"^2 expire at .*2026:\n", re.MULTILINE)

    assert answer("dump", leading) == without_idle_deadlines.sub("", recorded("standalone.dump"))
    follower = answer("dump", Values())
    assert follower.splitlines()[:6] == recorded("follower.dump").splitlines()[:6]


@pytest.mark.parametrize("word", ["wchs", "wchc", "wchp", "dirs", "ruok", "isro", "crst", "srst"])
def test_short_words_are_word_for_word(word: str) -> None:
    """Line ends included: some have one, some have two, some have none."""
    assert answer(word, Values()) == recorded(f"standalone.{word}")


def test_mntr_prints_integers_and_decimals_as_java_does() -> None:
    """Programs read 0.0 as a float and 19 as an integer."""
    assert answer("mntr", Values()).splitlines() == [
        f"zk_version\t{version_line()}",
        "zk_server_state\tstandalone",
        "zk_avg_latency\t7.8333",
        "zk_max_latency\t19",
        "zk_connection_drop_probability\t0.0",
    ]


def test_envi_begins_with_the_version() -> None:
    """From this line kazoo learns the server's version: it takes its leading digits."""
    lines = answer("envi", Values()).splitlines()

    assert lines[:2] == ["Environment:", f"zookeeper.version={version_line()}"]
    assert re.match(r"\d+\.\d+\.\d+", version_line())
    assert re.fullmatch(r"[A-Za-z0-9.-]+, built on [0-9-]+ [0-9:]+ UTC", version_line())


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_member_without_a_quorum_answers_only_what_is_true_of_it(word: str) -> None:
    """To ruok it says that the process lives; everything about the service is refused."""
    text = answer(word, Values(serving=False))

    if word in {"ruok", "envi", "gtmk", "stmk"}:
        assert "not currently serving" not in text
    elif word == "isro":
        assert text == recorded("no-quorum.isro")
    else:
        assert text == recorded("no-quorum.srvr")


def test_only_words_of_the_whitelist_run() -> None:
    """Refused with a sentence, also for ruok; unknown words never come here."""
    values = Values(config(words=("srvr",)))

    assert answer("ruok", values) == recorded("whitelist-srvr-only.ruok")
    assert answer("mntr", values) == recorded("whitelist-srvr-only.mntr")
    assert answer("srvr", values).startswith("Zookeeper version: ")
    assert values.resets == []


def test_words_that_change_something_must_be_allowed_first() -> None:
    """By default anybody may look, and nobody may reset."""
    values = Values(config(words=READ_ONLY_WORDS))

    assert set(WORDS) - set(READ_ONLY_WORDS) == {"crst", "srst", "stmk"}
    assert "whitelist" in answer("srst", values)
    assert values.resets == []
    assert answer("srst", Values(config())) == "Server stats reset.\n"


def test_isro_is_allowed_where_read_only_mode_is_on() -> None:
    """Clients in read-only mode ask it to find a server that takes writes."""
    values = Values(config(words=("srvr",), read_only_enabled=True))

    assert answer("isro", values) == "rw"


def test_a_watch_on_a_strange_path_keeps_its_line() -> None:
    """A watch may name what can never exist, line ends included."""

    class Strange(Values):
        def watches_by_path(self) -> Sequence[tuple[str, Sequence[SessionId]]]:
            return [("/a\n\t0x1", [7])]

    assert answer("wchp", Strange()) == "/a\\n\\t0x1\n\t0x7\n\n"


@pytest.mark.parametrize("word", ["wchp", "wchc"])
def test_what_is_too_long_to_be_shown_is_not_made(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A million watches would stop the member for as long as they take to be written."""
    monkeypatch.setattr(four_letter, "ANSWER_CHARACTERS_MAX", 10)

    class Many(Values):
        def watches_by_path(self) -> Iterator[tuple[str, Sequence[SessionId]]]:  # type: ignore[override]
            yield "/a/path", [7]
            yield from self.too_many()

        def watches_by_session(self) -> Iterator[tuple[SessionId, Sequence[str]]]:  # type: ignore[override]
            yield 7, ["/a/path"]
            yield from self.too_many()

        def too_many(self) -> Iterator[tuple[Any, Sequence[Any]]]:
            raise AssertionError("nobody sees the next one")
            yield

    assert len(answer(word, Many())) == 10


def test_hash_lists_digests() -> None:
    """Zxid in hexadecimal without a prefix, digest in decimal."""
    assert answer("hash", Values()) == "100000080: 1371985504\n"
