"""Claims about a member whose disk is slower than its leader."""

from zabd.server.backlog import BACKLOG_BYTES_MAX, Backlog
from zabd.zab.broadcast import OUTSTANDING_BYTES_MAX


class Log:
    unwritten_bytes = 0


class Link:
    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_a_leader_is_not_read_while_too_much_waits_for_the_disk() -> None:
    """It is read again when half of that is written, so not for every group anew."""
    log, link = Log(), Link()
    backlog = Backlog(log)
    log.unwritten_bytes = BACKLOG_BYTES_MAX
    assert not backlog.is_full()

    log.unwritten_bytes += 1
    assert backlog.is_full()
    backlog.hold(link)
    assert not link.reading

    log.unwritten_bytes = BACKLOG_BYTES_MAX // 2 + 1
    backlog.written()
    assert not link.reading
    log.unwritten_bytes -= 1
    backlog.written()
    assert link.reading


def test_another_leader_is_held_as_well() -> None:
    """What the one before had sent is still being written."""
    log, before, now = Log(), Link(), Link()
    backlog = Backlog(log)
    log.unwritten_bytes = BACKLOG_BYTES_MAX + 1
    backlog.hold(before)
    backlog.hold(None)  # its link is gone already
    backlog.hold(now)
    assert not now.reading

    log.unwritten_bytes = 0
    backlog.written()
    assert now.reading


def test_a_follower_that_keeps_up_is_never_held() -> None:
    """A leader has less outstanding than what is let in."""
    assert 2 * OUTSTANDING_BYTES_MAX <= BACKLOG_BYTES_MAX
