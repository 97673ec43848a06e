"""Claims about work that has to leave room for requests."""

from collections.abc import Callable

import pytest

from zabd.server.pace import BUSY_SHARE, LATE_SHARE, Pace

PIECE_S = 0.002
DISK_S = 0.0003


class Clockwork:
    """A loop whose time goes on only while somebody works or waits, and a member's requests."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.requests = 0
        self.due: list[tuple[float, Callable[[], object]]] = []
        self.cancelled = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> "Clockwork":
        self.due.append((when, lambda: callback(*args)))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def go_on(self) -> None:
        when, callback = self.due.pop(0)
        self.now_s = max(self.now_s, when)
        callback()


def work(loop: Clockwork, pieces: int, pace: Pace, *, requests_between: int) -> float:
    """Do so many pieces, each handed on by a disk; how long it took."""
    left, began_s = pieces, loop.now_s

    def piece() -> None:
        nonlocal left
        left -= 1
        loop.now_s += PIECE_S

    while left:
        pace(piece)
        if loop.due:
            loop.go_on()
        loop.now_s += DISK_S
        loop.requests += requests_between
    return loop.now_s - began_s


def test_while_requests_come_it_takes_its_share_and_no_more() -> None:
    """Q1: whatever a piece takes, thirteen times as long is everybody else's."""
    loop = Clockwork()
    pace = Pace(loop, lambda: loop.requests)  # type: ignore[arg-type]

    took_s = work(loop, 100, pace, requests_between=1)

    assert 100 * PIECE_S / took_s == pytest.approx(BUSY_SHARE, rel=0.05)


def test_with_nobody_there_it_goes_on_at_once() -> None:
    """Q1: an idle member's snapshot takes as long as its pieces and the disk."""
    loop = Clockwork()
    pace = Pace(loop, lambda: loop.requests)  # type: ignore[arg-type]

    took_s = work(loop, 100, pace, requests_between=0)

    assert took_s == pytest.approx(100 * (PIECE_S + DISK_S))


def test_late_work_hurries_and_leaves_room_all_the_same() -> None:
    """Q1: a member that did nothing else until it is done would have stopped its clients."""
    loop = Clockwork()
    late = False
    pace = Pace(loop, lambda: loop.requests, lambda: late)  # type: ignore[arg-type]
    work(loop, 10, pace, requests_between=1)

    late = True
    took_s = work(loop, 100, pace, requests_between=1)

    assert 100 * PIECE_S / took_s == pytest.approx(LATE_SHARE, rel=0.05)


def test_a_longer_piece_is_followed_by_a_longer_rest() -> None:
    """A block that is read back takes longer than a slice, and must not take a larger share."""
    loop = Clockwork()
    pace = Pace(loop, lambda: loop.requests)  # type: ignore[arg-type]

    def long_piece() -> None:
        loop.now_s += 5 * PIECE_S

    pace(long_piece)
    ended_s = loop.now_s
    loop.requests += 1
    pace(long_piece)

    assert loop.due[0][0] - ended_s == pytest.approx(5 * PIECE_S * (1 / BUSY_SHARE - 1))


def test_after_the_end_nothing_is_done() -> None:
    """Q2: neither what waits for its time nor what comes later."""
    loop = Clockwork()
    pace = Pace(loop, lambda: loop.requests)  # type: ignore[arg-type]
    done: list[str] = []
    pace(lambda: setattr(loop, "now_s", loop.now_s + PIECE_S))
    loop.requests += 1
    pace(lambda: done.append("waits"))
    assert loop.due

    pace.stop()
    pace(lambda: done.append("late"))

    assert not loop.due
    assert not done
