"""Deep schedules, one each: what the core must survive, and that its guard is what survives it."""

from collections.abc import Callable

import pytest
from tests.zab.harness import Shape, World, stable

from zabd.zab import ballot, discovery
from zabd.zab.learners import Learner
from zabd.zab.messages import AckEpoch, FollowerInfo, PeerState, Standing
from zabd.zab.quorum import MajorityQuorum

STEADY = Shape(latency_ms=(1, 1), disk_ms=(2, 2))


def serving(shape: Shape = STEADY) -> World:
    """An ensemble that serves, with one batch delivered everywhere."""
    world = World(1, shape)
    world.start()
    world.run_until(lambda: stable(world))
    world.submit(b"first")
    world.run_until(lambda: stable(world))
    return world


# --- leaders that are behind ----------------------------------------------------------------------


def stale_leader_is_named(world: World) -> None:
    """2 and 3 commit a batch without 1; then 1 and 2 are told that 1 leads."""
    world.crash(1)
    world.submit(b"second")
    world.run_until(lambda: stable(world))
    world.crash(3, keep=0)
    world.restart(1)
    world.elect(1, 1)
    world.run(1)
    world.elect(1, 2)
    world.run_until(lambda: world.leader() is not None)


def test_a_leader_steps_down_for_a_follower_that_is_ahead() -> None:
    """Z17: the history of a quorum's best member wins, whatever the election said."""
    world = serving()

    stale_leader_is_named(world)

    assert [batch.payload for batch in world.ledger] == [b"first", b"second"]
    world.restart(3)
    world.run_until(lambda: stable(world))
    world.check_agreement()


def test_without_that_check_a_committed_batch_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """M32: the harness sees it at once, so the test above proves something."""
    honest = discovery.LeaderDiscovery.promise

    def promise(self: discovery.LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        honest(self, learner, message)
        if self._m.transition is not None:
            self._m.transition = None
            self._promised[learner.member] = None
            self.complete = self._m.quorum.contains(self._promised)

    monkeypatch.setattr(discovery.LeaderDiscovery, "promise", promise)

    with pytest.raises(AssertionError, match="Z9"):
        stale_leader_is_named(serving())


def later_epoch_against_longer_history(world: World) -> None:
    """3 alone logs into epoch 1, then 1 and 2 go on in epoch 2, and 3 comes back."""
    world.mute(3, 1)
    world.mute(3, 2)
    for number in range(4):
        world.submit(b"lost %d" % number)
    world.run(10)
    world.crash(3, keep=0)
    world.heal()
    world.run_until(lambda: stable(world))
    world.submit(b"kept")
    world.run_until(lambda: stable(world))


def test_an_old_leaders_own_batches_are_cut() -> None:
    """What only a leader of an earlier epoch had was never acknowledged to anyone."""
    world = serving()
    later_epoch_against_longer_history(world)

    world.restart(3)
    world.run_until(lambda: stable(world))

    assert [batch.payload for batch in world.ledger] == [b"first", b"kept"]
    assert world.fired["trunc"] == 1
    assert world.members[3].store.history == world.ledger


# --- members without memory -----------------------------------------------------------------------


def wiped_and_stale_meet(world: World) -> None:
    """1 and 3 commit without 2; then 3 goes down, 1 loses its disk, and 2 comes back."""
    world.crash(2)
    world.submit(b"second")
    world.run_until(lambda: stable(world))
    world.crash(1)
    world.crash(3)
    world.wipe(1)
    world.restart(1)
    world.restart(2)
    world.run(5_000)


def test_a_wiped_and_a_stale_member_elect_nobody() -> None:
    """F32, S21: there is no leader until the one with the newest batch returns."""
    world = serving()

    wiped_and_stale_meet(world)

    assert all(m.peer is None or m.peer.state is PeerState.LOOKING for m in world.members.values())
    world.restart(3)
    world.run_until(lambda: stable(world))
    world.check_agreement()
    assert [batch.payload for batch in world.ledger] == [b"first", b"second"]


def test_if_blank_members_counted_the_batch_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the test above, taken away."""
    monkeypatch.setattr(discovery.LeaderDiscovery, "counts", lambda self, info: not info.observer)
    monkeypatch.setattr(ballot.Ballot, "founding", lambda self: True)

    with pytest.raises(AssertionError, match="Z9"):
        wiped_and_stale_meet(serving())


def test_a_wiped_member_is_a_voter_again_once_it_has_been_told_all() -> None:
    """S20: a leader elected without it vouches for what it forgot."""
    world = serving()
    world.crash(1)
    world.wipe(1)
    world.restart(1)
    world.run_until(lambda: stable(world))
    assert world.members[1].store.cluster_id == world.members[2].store.cluster_id

    world.crash(3)
    world.run_until(lambda: stable(world))
    world.submit(b"second")
    world.run_until(lambda: stable(world))

    assert world.members[1].store.history[-1].payload == b"second"


def test_a_blank_member_is_admitted_only_after_a_quorum_has_answered() -> None:
    """It may have forgotten a promise to a later leader; a round without it shows there is none."""
    world = serving()
    world.crash(1)
    world.wipe(1)
    leader = world.leader()
    assert leader is not None
    assert leader.number == 3
    world.mute(2, 3)  # from here on 3 only believes that it leads

    world.restart(1)
    world.run(world.shape.tick_ms * 4)

    assert leader.leads
    assert world.members[1].store.cluster_id is None


@pytest.mark.parametrize("up", [1, 2])
def test_no_ensemble_is_founded_before_all_voters_have_spoken(up: int) -> None:
    """The one that is missing might be the one that remembers."""
    world = World(1, STEADY)
    world.start(*range(1, up + 1))

    world.run(10_000)

    assert world.leader() is None
    peer = world.members[1].peer
    assert peer is not None
    assert peer.standing is Standing.BLANK
    assert peer.waiting_for == tuple(range(up + 1, 4))


def test_a_founding_survives_the_crash_of_its_leader_at_any_moment() -> None:
    """The cluster id may be on any number of disks, one included, when its leader goes."""
    for crash_ms in range(40):
        world = World(crash_ms, STEADY)
        world.start()
        world.run(crash_ms)
        world.crash(3)
        world.run(50)
        world.restart(3)
        world.run_until(lambda world=world: stable(world))
        assert len({member.store.cluster_id for member in world.members.values()}) == 1


def test_what_is_left_of_a_founding_that_was_cut_short_joins_the_next_one() -> None:
    """Its word in the election has to do, if its link to the new leader comes too late."""
    world = World(1, STEADY)
    world.members[2].store.cluster_id = b"of the first one"
    world.start()
    last = world.members[3]
    world.run_until(lambda: last.peer is not None and last.peer.state is PeerState.LEADING)
    world.mute(2, 3)

    world.run_until(lambda: last.store.cluster_id is not None)
    world.heal()
    world.run_until(lambda: stable(world))

    ids = {member.store.cluster_id for member in world.members.values()}
    assert ids == {b"of the first one"}


def test_a_member_of_another_cluster_is_refused() -> None:
    """F22: a foreign cluster id never gets past the first frame; the member says why it waits."""
    world = serving()
    world.crash(1)
    world.members[1].store.cluster_id = b"another cluster."

    world.restart(1)
    world.run(5_000)

    assert world.members[1].peer is not None
    assert not world.members[1].peer.serving
    leader = world.leader()
    assert leader is not None
    assert leader.peer is not None
    assert leader.peer.synced_followers == 1
    assert world.fired["foreign_member"] == 2


# --- observers ------------------------------------------------------------------------------------


def test_observers_carry_no_decision() -> None:
    """M65: one voter and two observers are not three of five."""
    world = serving(Shape(observers=2, latency_ms=(1, 1), disk_ms=(2, 2)))
    world.crash(1)
    world.run_until(lambda: stable(world))
    leader = world.leader()
    assert leader is not None

    world.crash(2)
    world.run(50)

    assert not leader.leads
    assert world.submit(b"second") is None


def test_if_observers_counted_a_minority_would_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the test above, taken away."""
    monkeypatch.setattr(MajorityQuorum, "contains", lambda self, members: len(members) >= self.size)
    monkeypatch.setattr(discovery.LeaderDiscovery, "counts", _everyone)
    monkeypatch.setattr(MajorityQuorum, "acked", lambda self, values: max(values.values()))

    with pytest.raises(AssertionError, match="D6"):
        serving(Shape(observers=2, latency_ms=(1, 1), disk_ms=(2, 2)))


def _everyone(self: discovery.LeaderDiscovery, info: FollowerInfo) -> bool:
    return True


def test_a_leader_does_not_notice_its_observers_go() -> None:
    """An observer's coming and going changes no quorum, and no leader."""
    world = serving(Shape(observers=1, latency_ms=(1, 1), disk_ms=(2, 2)))
    before = world.leader()

    world.crash(4)
    world.submit(b"second")
    world.run_until(lambda: stable(world))

    assert world.leader() is before
    world.restart(4)
    world.run_until(lambda: stable(world))
    world.check_agreement()


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("voters", [3, 5])
def test_after_a_crash_of_the_leader_the_next_one_serves_at_once(voters: int) -> None:
    """The closed link is noticed, the survivors have all voted: no timer runs out on the way."""
    world = serving(Shape(voters=voters, latency_ms=(0, 1), disk_ms=(0, 0)))
    leader = world.leader()
    assert leader is not None
    crashed_ms = world.now_ms

    world.crash(leader.number)
    world.run_until(lambda: world.leader() is not None)

    assert world.now_ms - crashed_ms < 20


def test_a_joining_member_is_in_step_at_once() -> None:
    """Members answer one that looks, and the leader says itself that it leads."""
    world = serving(Shape(latency_ms=(0, 1), disk_ms=(0, 0)))
    world.crash(1)
    world.submit(b"second")
    world.run_until(lambda: stable(world))
    restarted_ms = world.now_ms

    world.restart(1)
    world.run_until(lambda: stable(world))

    assert world.now_ms - restarted_ms < 20


def test_a_cut_follower_is_back_at_once_and_costs_no_election() -> None:
    """With two others in step the leader goes on while one reconnects."""
    world = serving(Shape(voters=5, latency_ms=(0, 1), disk_ms=(0, 0)))
    leader = world.leader()
    assert leader is not None
    assert leader.peer is not None
    epoch, cut_ms = leader.peer.epoch, world.now_ms

    world.cut(1, leader.number)
    world.run(3)
    world.run_until(lambda: stable(world))

    assert world.now_ms - cut_ms < 100
    assert leader.peer.epoch == epoch


def test_even_parts_of_an_ensemble_do_not_both_serve() -> None:
    """M54: two of four are no quorum."""
    world = serving(Shape(voters=4, latency_ms=(1, 1), disk_ms=(2, 2)))

    world.part((1, 2), (3, 4))
    world.run(5_000)

    assert world.leader() is None


def test_idle_members_are_woken_only_by_pings() -> None:
    """Nothing is polled: an hour of idling is two pings a tick and nothing else."""
    world = serving()
    before = world.steps

    world.run(10 * world.shape.tick_ms)

    pings = 10 * 2
    assert world.steps - before <= pings * (1 + 2 * 2) + 5


@pytest.mark.parametrize("faulty", [1, 3])
def test_a_member_whose_disk_stalls_drops_out(faulty: int) -> None:
    """S12: half the sync limit, then it leaves; the others go on."""
    world = serving()
    world.stall_disk(faulty)
    world.submit(b"second")

    world.run(world.shape.tick_ms * 4)

    peer = world.members[faulty].peer
    assert peer is not None
    assert peer.state is PeerState.LOOKING
    assert world.leader() is not None
    world.stall_disk(faulty, stalled=False)
    world.run_until(lambda: stable(world))
    world.check_agreement()


# --- everything, from every moment ----------------------------------------------------------------


def moments(play: Callable[[World, int], None], count: int) -> None:
    """The same scene with one fault at each of these milliseconds."""
    for moment_ms in range(count):
        world = serving()
        play(world, moment_ms)
        world.heal()
        for number in world.members:
            world.restart(number)
        world.run_until(lambda world=world: stable(world))
        world.check_agreement()


def test_a_snapshot_may_be_interrupted_at_any_moment() -> None:
    """F33: the old state stays, and the next attempt succeeds."""

    def play(world: World, moment_ms: int) -> None:
        world.crash(1)
        for number in range(5):
            world.submit(b"batch %d" % number)
        world.run_until(lambda: stable(world))
        for number in (2, 3):
            world.crash(number)
            world.purge(number)
            world.restart(number)
        world.run_until(lambda: stable(world))
        world.restart(1)
        world.run(moment_ms)
        world.crash(3 if moment_ms % 2 else 1)
        world.run(30)

    moments(play, 40)


def test_a_truncation_may_be_interrupted_at_any_moment() -> None:
    """M28: what the disk was told and what memory says may not differ afterwards."""

    def play(world: World, moment_ms: int) -> None:
        later_epoch_against_longer_history(world)
        world.restart(3)
        world.run(moment_ms)
        if moment_ms % 2:
            world.cut(3, 2)
        else:
            world.crash(3)
        world.run(30)

    moments(play, 40)
