"""Zab needs links that keep their order, and notices at the first proposal that comes too early.

A follower appends what comes, and an acknowledgement names one zxid and speaks for all before it.
So if a proposal overtook the one before, "everything up to 1:8 is on my disk" would not be true of
1:7. Here one direction of one link lets messages overtake each other, by chance. TCP never does; a
link made of datagrams would. A follower of zabd refuses a proposal that does not follow, and leaves
its leader; in the simulator a check of the run is faster.
"""

from collections.abc import Callable
from functools import partial

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.lessons.stage import SEED, Lesson, Stage
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import plain_shape

PATIENCE_MS = 2_000
BURST = 5


def play(stage: Stage, *, ordered: bool) -> InvariantError | None:
    """Propose in bursts for a while; which check failed, if one did."""
    level = CoreLevel(SEED, plain_shape(3))
    try:
        with stage.level(level):
            _propose(stage, level, ordered=ordered)
    except InvariantError as error:
        return error
    return None


def _propose(stage: Stage, level: CoreLevel, *, ordered: bool) -> None:
    for member in level.members.values():
        member.start()
    _until(level, lambda: _serving(level))
    leader = level.a_leader()
    assert leader is not None
    assert leader.process is not None
    if not ordered:
        level.network.disorder(leader.host, level.members[1].host)
    try:
        for burst in range(PATIENCE_MS // 100):
            for number in range(BURST):
                payload = b"%d" % (burst * BURST + number)
                leader.process.enter(partial(leader.process.submit, 1, payload))
            level.schedule.run_until(level.schedule.now_us + 100 * US_PER_MS)
    except InvariantError as error:
        stage.say(f"{len(level.checker.ledger)} batches were committed; then {error.detail}")
        raise
    stage.say(f"{len(level.checker.ledger)} batches were committed")


def _serving(level: CoreLevel) -> bool:
    peers = [member.process and member.process.peer for member in level.members.values()]
    return all(peer and peer.serving for peer in peers)


def _until(level: CoreLevel, condition: Callable[[], bool]) -> None:
    while not condition():
        level.schedule.step()


def run(stage: Stage) -> None:
    """The same bursts twice."""
    stage.say("-- links that keep their order")
    assert play(stage, ordered=True) is None
    stage.say("-- from the leader to m1, messages may overtake each other")
    error = play(stage, ordered=False)
    assert error is not None
    stage.say(f"{error.id} {error.name}: {error.rule}")


LESSON = Lesson(
    "fifo-links",
    "Why Zab needs FIFO links",
    "Two proposals, 1:7 and 1:8, overtake each other on the way to one follower, which appends and "
    "acknowledges what comes. What does its acknowledgement of 1:8 mean, and what could be lost?",
    run,
    "arrows from the leader to m1 that cross",
)
