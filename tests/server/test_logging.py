"""Claims about log lines: one event, one line, whatever is in it."""

import io
import json
import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zabd.server.logging import EventLog


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_796_058_751_042


def logged(event: str, fields: dict[str, object], *, as_json: bool = False) -> str:
    """The line of one event, by a member that stands somewhere."""
    stream = io.StringIO()
    log = EventLog(stream, StoppedClock(), member=3, as_json=as_json)
    log.standing = lambda: {"state": "leading", "epoch": 4, "zxid": 17}
    log.trace(event, fields)
    return stream.getvalue()


def test_a_line_says_who_and_where_it_stands() -> None:
    """Lines of several members are merged and searched; each must be whole by itself."""
    assert logged("elected", {"took_ms": 12}) == (
        "ts=2026-11-30T17:12:31.042Z level=info event=elected member=3"
        " state=leading epoch=4 zxid=17 took_ms=12\n"
    )


def test_json_lines_carry_the_same() -> None:
    """Numbers stay numbers, for programs that compute with them."""
    assert json.loads(logged("elected", {"took_ms": 12, "ok": True, "b": b"\1"}, as_json=True)) == {
        "ts": "2026-11-30T17:12:31.042Z",
        "level": "info",
        "event": "elected",
        "member": 3,
        "state": "leading",
        "epoch": 4,
        "zxid": 17,
        "took_ms": 12,
        "ok": True,
        "b": "01",
    }


@pytest.mark.parametrize("as_json", [False, True])
@given(text=st.text())
@example(text="'")
def test_a_client_cannot_forge_a_line(as_json: bool, text: str) -> None:  # noqa: FBT001
    """Line ends, escape codes and quotes in a path must not look like another event."""
    line = logged("refused", {"path": text}, as_json=as_json)

    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert line[:-1].isascii()
    assert line[:-1].isprintable()
    if as_json:
        assert json.loads(line)["path"] == text
    elif text.isascii() and text.isprintable() and "\\" not in text:
        assert f"path={text}" in shlex.split(line)


def test_a_long_value_is_cut() -> None:
    """A path may have a million characters."""
    line = logged("refused", {"path": "x" * 1_000_000})

    assert len(line) < 3_000
    assert "(1000000 characters)" in line
