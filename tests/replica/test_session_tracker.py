"""The leader's session deadlines: never early, at most one tick late."""

from hypothesis import given
from hypothesis import strategies as st

from zabd.replica.session_tracker import SessionTracker

TICK_MS = 2000


def look(tracker: SessionTracker, from_ms: int, to_ms: int) -> list[int]:
    """Look every second, as a leader does; all that fell due."""
    looks = [tracker.due(now_ms, limit=10) for now_ms in range(from_ms, to_ms + 1, 1000)]
    return [session_id for due in looks for session_id in due]


def test_a_session_is_due_between_its_timeout_and_one_tick_later() -> None:
    """T1: buckets round up, so nobody expires early."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    tracker.track(7, 12_000, owner=1, now_ms=100)

    assert look(tracker, 0, 12_000) == []
    assert look(tracker, 12_100, 14_100) == [7]
    assert 7 not in tracker


def test_a_touch_postpones_the_deadline() -> None:
    """A client that speaks keeps its session."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    tracker.track(7, 4000, owner=1, now_ms=0)
    for now_ms in range(1000, 20_000, 1000):
        tracker.touch(7, now_ms)
        assert tracker.due(now_ms, limit=10) == []


def test_a_late_report_of_an_old_touch_does_not_bring_the_deadline_forward() -> None:
    """Touches arrive with their age; an older one than we know must not shorten a life."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    tracker.track(7, 4000, owner=1, now_ms=3000)
    tracker.touch(7, 500)
    assert look(tracker, 1000, 7000) == []


def test_a_pause_of_the_process_expires_nobody() -> None:
    """T2: silence that nobody could have heard does not count against a session."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    tracker.track(7, 4000, owner=1, now_ms=0)
    tracker.due(1000, limit=10)

    assert tracker.due(61_000, limit=10) == []
    assert tracker.due(63_000, limit=10) == []
    assert tracker.due(66_000, limit=10) == [7]


def test_expiry_is_taken_in_bounded_pieces() -> None:
    """A storm of expiries must not hold the loop: the rest waits for the next turn."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    for session_id in range(1, 11):
        tracker.track(session_id, 4000, owner=1, now_ms=0)
    look(tracker, 0, 5000)
    assert tracker.due(6000, limit=4) == [1, 2, 3, 4]
    assert tracker.due(6000, limit=4) == [5, 6, 7, 8]
    assert tracker.due(6000, limit=4) == [9, 10]


@given(
    st.lists(
        st.tuples(st.sampled_from("tuf"), st.integers(1, 5), st.integers(0, 1500)), max_size=60
    )
)
def test_no_session_is_lost_or_expired_early(steps: list[tuple[str, int, int]]) -> None:
    """Whatever the interleaving of tracking, touching and forgetting, T1 holds for everybody."""
    tracker = SessionTracker(TICK_MS, now_ms=0)
    heard: dict[int, int] = {}
    now_ms = 0
    for kind, session_id, pause_ms in steps:
        now_ms += pause_ms
        if kind == "t":
            tracker.track(session_id, 3000, owner=1, now_ms=now_ms)
            heard[session_id] = now_ms
        elif kind == "u" and session_id in heard:
            tracker.touch(session_id, now_ms)
            heard[session_id] = now_ms
        elif kind == "f":
            tracker.forget(session_id)
            heard.pop(session_id, None)
        for expired in tracker.due(now_ms, limit=100):
            assert now_ms - heard.pop(expired) >= 3000
        for session_id_left, heard_ms in heard.items():
            assert session_id_left in tracker
            assert now_ms - heard_ms <= 3000 + TICK_MS
