"""Lessons: what makes an ensemble agree, and what it promises, each shown by an asserted run.

`zabctl sim lessons` lists them; docs/lessons has a page for each. Each is a module of its own, to
be read, changed, and run again with `zabctl sim lesson FILE.py`.
"""

from typing import Final

from zabd.cluster_sim.lessons import (
    ack_before_fsync,
    coalesced_watches,
    controller,
    crash_after_quorum,
    crash_before_quorum,
    dedup_crash,
    diff_and_snap,
    epochs,
    fifo_links,
    herd,
    observers,
    old_leader_returns,
    paused_holder,
    quorum_overlap,
    raft,
    reads_scale,
    replay,
    single_system_image,
    split_brain,
    stale_read,
    two_phase_commit,
    wait_freedom,
)
from zabd.cluster_sim.lessons.stage import Lesson, Stage

__all__ = ["LESSONS", "Lesson", "Stage"]

LESSONS: Final[dict[str, Lesson]] = {
    module.LESSON.name: module.LESSON
    for module in (
        crash_before_quorum,
        crash_after_quorum,
        quorum_overlap,
        split_brain,
        old_leader_returns,
        epochs,
        diff_and_snap,
        ack_before_fsync,
        replay,
        fifo_links,
        two_phase_commit,
        raft,
        stale_read,
        single_system_image,
        coalesced_watches,
        herd,
        wait_freedom,
        paused_holder,
        dedup_crash,
        observers,
        reads_scale,
        controller,
    )
}
"""By name, in the order in which they are best read."""
