"""Hundreds of short random lives, every check on; and the same checks against planted bugs."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.zab.random_runs import Life

from zabd.model.ids import MemberId
from zabd.model.zxid import Zxid
from zabd.zab import broadcast, discovery, synchronisation
from zabd.zab.learners import Learner
from zabd.zab.log import LogPosition
from zabd.zab.member import Member
from zabd.zab.messages import Ack, AckEpoch, LeaderInfo, Message, Propose, Trunc
from zabd.zab.quorum import MajorityQuorum

SEEDS_PER_TEST = 25


@pytest.mark.parametrize("group", range(8))
def test_no_life_breaks_an_invariant_and_each_ends_in_service(group: int) -> None:
    """Safety under any mix of faults; then, faults over, progress within a bound."""
    for seed in range(group * SEEDS_PER_TEST, (group + 1) * SEEDS_PER_TEST):
        try:
            Life(seed).live()
        except Exception as error:
            error.add_note(f"replay with Life({seed}).live()")
            raise


def digest_of_lives(seeds: range) -> str:
    """Everything that happened, in order."""
    digest = hashlib.sha256()
    for seed in seeds:
        life = Life(seed)
        world = life.world
        world.narrate = lambda member, name, facts, world=world: digest.update(
            f"{world.now_ms} {member} {name} {facts}\n".encode()
        )
        life.live(steps=20)
    return digest.hexdigest()


def test_one_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    """Nothing in the core depends on the order of a set, an id or a hash."""
    program = (
        "from tests.zab.test_random_runs import digest_of_lives; print(digest_of_lives(range(4)))"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert traces == {digest_of_lives(range(4)) + "\n"}


# --- planted bugs ---------------------------------------------------------------------------------
# Each is one of the gallery that the simulator hunts at large; here they prove that the checks of
# this room's own harness can fail.


def ack_what_is_only_buffered(patch: pytest.MonkeyPatch) -> None:
    """M01."""
    honest = broadcast.LearnerBroadcast.receive

    def receive(self: broadcast.LearnerBroadcast, message: Message) -> None:
        honest(self, message)
        if isinstance(message, Propose) and not self._m.config.observer:
            self._m.send(self._link, Ack(self._m.tail.last.zxid))

    patch.setattr(broadcast.LearnerBroadcast, "receive", receive)
    patch.setattr(broadcast.LearnerBroadcast, "persisted", lambda self: None)


def count_itself_too_early(patch: pytest.MonkeyPatch) -> None:
    """M02."""
    honest = broadcast.LeaderBroadcast.advance

    def advance(self: broadcast.LeaderBroadcast, learners: list[Learner]) -> None:
        durable, self._m.durable = self._m.durable, self._m.tail.last
        honest(self, learners)
        self._m.durable = durable

    patch.setattr(broadcast.LeaderBroadcast, "advance", advance)


def promise_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """M03."""
    honest = discovery.LearnerDiscovery.receive

    def receive(self: discovery.LearnerDiscovery, message: Message) -> None:
        honest(self, message)
        if self._m.persisting:
            self._m.send(self._link, AckEpoch(self._m.current_epoch, self._m.tail.last))

    patch.setattr(discovery.LearnerDiscovery, "receive", receive)
    patch.setattr(discovery.LearnerDiscovery, "promise", lambda self: None)


def name_the_epoch_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """M05."""
    honest = discovery.LeaderDiscovery.greet

    def greet(
        self: discovery.LeaderDiscovery, learner: Learner, learners: dict[int, Learner]
    ) -> None:
        honest(self, learner, learners)
        if self.epoch is not None and not self.ready:
            self._m.send(learner.link, LeaderInfo(self.epoch))

    patch.setattr(discovery.LeaderDiscovery, "greet", greet)


def epoch_before_history(patch: pytest.MonkeyPatch) -> None:
    """M07, M08."""

    def persisted(self: synchronisation.LearnerSynchronisation) -> None:
        m = self._m
        if self._invited is not None and not self._acked and not m.persisting:
            m.persist_epochs(
                max(m.accepted_epoch, self.epoch), self.epoch, self._invited.cluster_id
            )

    patch.setattr(synchronisation.LearnerSynchronisation, "persisted", persisted)


def choose_an_epoch_that_is_not_new(patch: pytest.MonkeyPatch) -> None:
    """M04 and M06 together, in effect: two leaders of one epoch."""

    def promise(self: discovery.LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        learner.accepted_epoch = -1
        honest(self, learner, message)

    honest = discovery.LeaderDiscovery.promise

    def choose(self: discovery.LeaderDiscovery, learners: dict[int, Learner]) -> None:
        counted = [learner.member for learner in learners.values() if learner.counts]
        if self._m.quorum.contains([*counted, self._m.me]):
            self.epoch = max(1, self._m.accepted_epoch)
            self._m.persist_epochs(self.epoch, self._m.current_epoch, self._m.cluster_id)

    patch.setattr(discovery.LeaderDiscovery, "promise", promise)
    patch.setattr(discovery.LeaderDiscovery, "_choose", choose)


def truncate_a_batch_too_many(patch: pytest.MonkeyPatch) -> None:
    """M12."""
    honest = Member.truncate

    def truncate(self: Member, position: LogPosition) -> None:
        before = self.tail.boundary(position.zxid - 1)
        honest(self, position if before is None else before)

    patch.setattr(Member, "truncate", truncate)


def skip_the_truncation(patch: pytest.MonkeyPatch) -> None:
    """TRUNC is acknowledged and not done."""
    honest = synchronisation.LearnerSynchronisation.receive

    def receive(self: synchronisation.LearnerSynchronisation, message: Message) -> None:
        if isinstance(message, Trunc):
            self._align()
        else:
            honest(self, message)

    patch.setattr(synchronisation.LearnerSynchronisation, "receive", receive)


def vote_while_the_disk_owes_an_answer(patch: pytest.MonkeyPatch) -> None:
    """M27's beginning."""
    patch.setattr(Member, "quiet", property(lambda _: True))


def half_is_a_quorum(patch: pytest.MonkeyPatch) -> None:
    """M54."""
    honest = MajorityQuorum.__init__

    def init(self: MajorityQuorum, voters: tuple[MemberId, ...]) -> None:
        honest(self, voters)
        self.size = max(1, len(self.voters) // 2)

    patch.setattr(MajorityQuorum, "__init__", init)


def deliver_what_nobody_else_has(patch: pytest.MonkeyPatch) -> None:
    """M02's relative: the leader delivers what is durable only here."""

    def advance(self: broadcast.LeaderBroadcast, learners: object) -> None:
        if self._m.durable.zxid.epoch == self.epoch:
            self._m.commit(Zxid(max(self._m.committed, self._m.durable.zxid)))

    patch.setattr(broadcast.LeaderBroadcast, "advance", advance)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    ack_what_is_only_buffered,
    count_itself_too_early,
    promise_before_it_is_durable,
    name_the_epoch_before_it_is_durable,
    epoch_before_history,
    choose_an_epoch_that_is_not_new,
    truncate_a_batch_too_many,
    skip_the_truncation,
    vote_while_the_disk_owes_an_answer,
    half_is_a_quorum,
    deliver_what_nobody_else_has,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that never fired would prove nothing about the peers above."""
    plant(monkeypatch)

    assert found_by(200) is not None


def found_by(seeds: int) -> int | None:
    """The first seed whose life breaks a check."""
    for seed in range(seeds):
        try:
            Life(seed).live()
        except Exception:  # noqa: BLE001  # any way to fall over will do
            return seed
    return None
