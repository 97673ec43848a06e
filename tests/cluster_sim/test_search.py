"""The search goes through everything within its bounds, and finds what is planted there."""

import contextlib
import json
from collections.abc import Callable

import pytest

from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.search import search
from zabd.cluster_sim.search_world import Action, Beginning, Bounds, State, World
from zabd.model.zxid import Zxid
from zabd.zab.broadcast import LeaderBroadcast, LearnerBroadcast
from zabd.zab.discovery import LeaderDiscovery, LearnerDiscovery
from zabd.zab.learners import Learner
from zabd.zab.messages import Ack, AckEpoch, AckNewLeader, Message, Propose
from zabd.zab.synchronisation import LearnerSynchronisation

pytestmark = pytest.mark.sim


def established(world: World) -> State:
    """Where a search begins."""
    state = world.begin()
    prelude = world.prelude(state)
    action = next(prelude)
    with contextlib.suppress(StopIteration):
        while True:
            state = world.do(state, action)
            action = prelude.send(state)
    return state


@pytest.mark.parametrize(
    ("bounds", "states_min"),
    [
        pytest.param(Bounds(txns=0, crashes=1, epochs=2), 1_000, id="one crash, a new epoch"),
        pytest.param(Bounds(txns=2, crashes=0, epochs=1), 800, id="two transactions"),
    ],
)
def test_a_small_world_is_gone_through_and_holds(bounds: Bounds, states_min: int) -> None:
    """To the last schedule."""
    found = search(bounds)
    assert found.violation is None
    assert found.complete
    assert found.progress.frontier == 0
    assert found.progress.states > states_min


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_world_with_a_crash_is_gone_through_and_holds() -> None:
    """One transaction, one crash anywhere, two epochs."""
    found = search(Bounds(txns=1, crashes=1, epochs=2))
    assert found.violation is None
    assert found.complete
    assert found.progress.states > 50_000


def test_a_search_that_is_cut_short_says_so() -> None:
    """It has found nothing, and has not seen everything."""
    heard: list[int] = []
    found = search(
        Bounds(txns=2, crashes=2, epochs=3),
        states_max=4_100,
        tell=lambda progress: heard.append(progress.states),
    )
    assert found.violation is None
    assert not found.complete
    assert found.progress.frontier > 0
    assert heard == [2_000, 4_000]
    assert json.loads(json.dumps(found.as_object()))["complete"] is False


def test_a_state_is_the_same_whichever_way_it_was_reached() -> None:
    """Two followers that take one message each: either may be first."""
    world = World(Bounds(txns=1))
    state = world.do(established(world), Action("submit", 1))
    second, third = (
        next(action for action in world.actions(state) if action[:2] == ("deliver", member))
        for member in (2, 3)
    )
    assert world.do(world.do(state, second), third) == world.do(world.do(state, third), second)


def test_a_crash_leaves_each_part_of_what_was_under_way() -> None:
    """A record that was handed to the disk may be there after a crash, or not."""
    world = World(Bounds(txns=1))
    state = world.do(established(world), Action("submit", 1))
    ends = {
        world.store(world.do(state, action), 1).end.zxid
        for action in world.actions(state)
        if action[:2] == ("crash", 1)
    }
    assert ends == {Zxid(0), Zxid.of(1, 1)}


# --- mistakes of peers, as in the gallery ---------------------------------------------------------


def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """M01."""
    receive = LearnerBroadcast.receive

    def eager(self: LearnerBroadcast, message: Message) -> None:
        receive(self, message)
        if isinstance(message, Propose):
            self._m.send(self._link, Ack(self._m.tail.last.zxid))

    patch.setattr(LearnerBroadcast, "receive", eager)
    patch.setattr(LearnerBroadcast, "persisted", lambda _self: None)


def self_ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """M02."""
    advance = LeaderBroadcast.advance

    def eager(self: LeaderBroadcast, learners: object) -> None:
        durable, self._m.durable = self._m.durable, self._m.tail.last
        try:
            advance(self, learners)  # type: ignore[arg-type]
        finally:
            self._m.durable = durable

    patch.setattr(LeaderBroadcast, "advance", eager)


def epoch_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """M03."""
    receive = LearnerDiscovery.receive

    def eager(self: LearnerDiscovery, message: Message) -> None:
        receive(self, message)
        if self._m.persisting is not None:
            self._m.send(self._link, AckEpoch(self._m.current_epoch, self._m.tail.last))

    patch.setattr(LearnerDiscovery, "receive", eager)
    patch.setattr(LearnerDiscovery, "promise", lambda _self: None)


def new_leader_acked_before_history(patch: pytest.MonkeyPatch) -> None:
    """M07."""

    def persisted(self: LearnerSynchronisation) -> None:
        m, invited = self._m, self._invited
        if not self._acked and invited is not None and not m.persisting:
            m.persist_epochs(m.accepted_epoch, self.epoch, invited.cluster_id)

    def epochs_persisted(self: LearnerSynchronisation) -> None:
        assert self._invited is not None
        self._acked = True
        self._m.send(self._link, AckNewLeader(self.epoch, self._invited.position.zxid))

    patch.setattr(LearnerSynchronisation, "persisted", persisted)
    patch.setattr(LearnerSynchronisation, "epochs_persisted", epochs_persisted)


def epoch_before_history(patch: pytest.MonkeyPatch) -> None:
    """M08."""

    def persisted(self: LearnerSynchronisation) -> None:
        m, invited = self._m, self._invited
        if invited is not None and m.current_epoch < self.epoch and not m.persisting:
            m.persist_epochs(m.accepted_epoch, self.epoch, invited.cluster_id)
        elif invited is not None and not m.persisting and not m.appends and not self._acked:
            self.epochs_persisted()
        elif self._acked:
            m.send(self._link, Ack(m.durable.zxid))

    epochs_persisted = LearnerSynchronisation.epochs_persisted

    def when_both_are_durable(self: LearnerSynchronisation) -> None:
        if not self._m.appends:
            epochs_persisted(self)

    patch.setattr(LearnerSynchronisation, "persisted", persisted)
    patch.setattr(LearnerSynchronisation, "epochs_persisted", when_both_are_durable)


def epoch_at_up_to_date(patch: pytest.MonkeyPatch) -> None:
    """M09."""
    up_to_date = LearnerSynchronisation._up_to_date

    def persisted(self: LearnerSynchronisation) -> None:
        m, invited = self._m, self._invited
        if not self._acked and invited is not None and m.durable.zxid >= invited.position.zxid:
            self._acked = True
            m.send(self._link, AckNewLeader(self.epoch, m.durable.zxid))

    def late(self: LearnerSynchronisation, zxid: Zxid) -> None:
        assert self._invited is not None
        self._m.persist_epochs(self._m.accepted_epoch, self.epoch, self._invited.cluster_id)
        up_to_date(self, zxid)

    patch.setattr(LearnerSynchronisation, "persisted", persisted)
    patch.setattr(LearnerSynchronisation, "_up_to_date", late)


def better_history_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """M32."""
    promise = LeaderDiscovery.promise

    def careless(self: LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        self._history = max(self._history, (message.current_epoch, message.position.zxid))
        promise(self, learner, message)

    patch.setattr(LeaderDiscovery, "promise", careless)


PLANTED = [
    pytest.param(ack_before_fsync, Bounds(txns=1, crashes=0), {"D1"}, id="M01"),
    pytest.param(self_ack_before_fsync, Bounds(txns=1, crashes=0), {"D2"}, id="M02"),
    pytest.param(epoch_not_persisted, Bounds(txns=0, crashes=0), {"D3"}, id="M03"),
    pytest.param(new_leader_acked_before_history, Bounds(txns=1, crashes=1), {"D4"}, id="M07"),
    pytest.param(
        epoch_before_history,
        Bounds(txns=1, crashes=1),
        {"D4"},
        id="M08",
        marks=pytest.mark.slow,
    ),
    pytest.param(epoch_at_up_to_date, Bounds(txns=0, crashes=0), {"D4"}, id="M09"),
    pytest.param(
        better_history_not_looked_at,
        Bounds(txns=1, crashes=1),
        {"Z9", "Z13", "Z17"},
        id="M32",
        marks=pytest.mark.slow,
    ),
]


LEFT_BEHIND = Bounds(txns=1, crashes=0, begins=Beginning.LEFT_BEHIND)


@pytest.mark.parametrize(
    ("name", "bounds", "checks"),
    [
        pytest.param("diff-by-range", LEFT_BEHIND, {"Z11"}, id="M10"),
        pytest.param("cut-too-far", LEFT_BEHIND, {"Z10"}, id="M12"),
        pytest.param("votes-by-zxid-unguarded", Bounds(txns=1), {"Z17"}, id="M31 with M32"),
        pytest.param(
            "link-outlives-leadership",
            Bounds(txns=1),
            {"A5"},
            id="M77",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_of_the_gallery_is_found(name: str, bounds: Bounds, checks: set[str]) -> None:
    """As it is planted for seeds. M31 alone is harmless where votes decide nothing (Z17)."""
    with MUTANTS[name].planted():
        found = search(bounds)
    assert found.violation is not None
    assert found.violation.id in checks


def test_who_was_left_behind_is_brought_back_by_every_schedule() -> None:
    """The same beginning without a mistake: its own transaction goes, the committed one stays."""
    world = World(LEFT_BEHIND)
    first = established(world)
    assert world.peer(first, 1) is None
    assert [world.store(first, member).end.zxid for member in world.voters] == [
        Zxid.of(1, 2),
        Zxid.of(1, 1),
        Zxid.of(1, 1),
    ]
    found = search(LEFT_BEHIND)
    assert found.violation is None
    assert found.complete


@pytest.mark.parametrize(("plant", "bounds", "checks"), PLANTED)
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    bounds: Bounds,
    checks: set[str],
) -> None:
    """By the check that is meant to find it, and with the schedule that leads there."""
    plant(monkeypatch)
    found = search(bounds)
    assert found.violation is not None
    assert found.violation.id in checks
    assert str(found.violation) in found.schedule[-1]
