"""The texts of quotas: what ZooKeeper writes is understood, and anything else harms nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model.quotas import Limits, Usage, limits_path, parse_limits, parse_usage, stats_path


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (b"count=5,bytes=100", Limits(5, 100)),
        (b"count=-1,bytes=-1=;byteHardLimit=20;countHardLimit=2", Limits(-1, -1, 2, 20)),
        (b"bytes=7", Limits(-1, 7)),
        (b"count=0", Limits(0)),
        (b"countHardLimit=3;count=9", Limits(9, -1, 3)),
        (b"count=-7,bytes=12x", Limits()),
        (b"discount=5,bytes", Limits()),
        (b"count=99999999999999999999999999", Limits()),
        (b"\xff\x00,;;==,", Limits()),
        (b"x" * 2000 + b",count=5", Limits()),
        (b"", Limits()),
        (None, Limits()),
    ],
)
def test_limits_are_read_leniently(text: bytes | None, limits: Limits) -> None:
    """What ZooKeeper writes is understood; anything else limits nothing and raises nothing."""
    assert parse_limits(text) == limits


numbers = st.integers(-1, 10**15)


@given(st.builds(Limits, numbers, numbers, numbers, numbers))
def test_limits_come_back_as_they_were_written(limits: Limits) -> None:
    """Whichever of them are set."""
    assert parse_limits(limits.text) == limits


def test_limits_are_written_as_zkcli_writes_them() -> None:
    """The hard ones stand behind an odd separator, and only if there are any."""
    assert Limits(5, 100).text == b"count=5,bytes=100"
    assert Limits(size_bytes_hard=20, znodes_hard=2).text == (
        b"count=-1,bytes=-1=;byteHardLimit=20;countHardLimit=2"
    )


def test_usage_is_read_and_written() -> None:
    """Also the zeros of a text that says nothing."""
    assert parse_usage(Usage(3, 14).text) == Usage(3, 14)
    assert parse_usage(None) == parse_usage(b"?") == Usage(0, 0)


def test_the_znodes_of_a_quota() -> None:
    """Below the system's znode for them, by the path they are on."""
    assert limits_path("/a/b") == "/zookeeper/quota/a/b/zookeeper_limits"
    assert stats_path("/a/b") == "/zookeeper/quota/a/b/zookeeper_stats"
