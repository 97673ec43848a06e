"""The checks of sessions trip on what they are there for, and let pass what is only near it."""

from dataclasses import dataclass, field

import pytest
from tests.cluster_sim.test_replica_checks import SESSION, World, create, trips

from zabd.cluster_sim.session_checks import TIMELY_SLACK_TICKS, Heard, Issued, SessionChecks
from zabd.model.ids import LinkId
from zabd.znode_tree import txns

TICK_MS, SYNC_LIMIT, TIMEOUT_MS = 100, 5, 4_000
MS = 1_000  # microseconds
LINK = 7


@dataclass
class Leader:
    """A leader as the check of expiries sees it."""

    life: object = "leader"
    rate: float = 1.0
    ticked_us: int = 0
    led_ms: int = 60_000
    learnt: dict[LinkId, int] = field(default_factory=dict)

    def learnt_us(self, link: LinkId) -> int | None:
        return self.learnt.get(link)


def make_world() -> World:
    """An open session, and time that the checks know."""
    world = World()
    checker = world.checker
    checker.sessions = SessionChecks(checker.tree, checker.fail, TICK_MS, SYNC_LIMIT)
    world.deliver(txns.create_session(TIMEOUT_MS))
    return world


@pytest.fixture
def world() -> World:
    """One of those."""
    return make_world()


def hear(world: World, at_ms: int, life: object = "follower") -> None:
    """Member 2 has bytes of the session's client."""
    world.checker.sessions.hears(2, SESSION, Heard(life, LINK, at_ms * MS))


# --- S4 ------------------------------------------------------------------------------------------


def test_a_session_does_not_expire_of_which_the_leader_could_know(world: World) -> None:
    """The follower has told everything that it had heard up to 2,050 ms."""
    hear(world, 2_000)
    with trips("S4"):
        world.checker.sessions.expiring(Leader(learnt={LINK: 2_050 * MS}), SESSION, 4_500 * MS)


def test_a_session_expires_whose_follower_is_cut_off(world: World) -> None:
    """Near miss: the client is heard, but no leader can know that."""
    hear(world, 2_000)
    sessions = world.checker.sessions
    sessions.expiring(Leader(learnt={LINK: 1_950 * MS}), SESSION, 4_500 * MS)
    sessions.expiring(Leader(), SESSION, 4_500 * MS)
    sessions.expiring(Leader(learnt={LINK: 2_050 * MS}), SESSION, 6_000 * MS)


def test_the_leader_hears_its_own_clients(world: World) -> None:
    """What it has in hand counts, but not what comes at the very moment of the expiry."""
    hear(world, 4_500, life="leader")
    world.checker.sessions.expiring(Leader(), SESSION, 4_500 * MS)
    with trips("S4"):
        world.checker.sessions.expiring(Leader(), SESSION, 4_501 * MS)


def test_a_new_leader_gives_every_session_its_time(world: World) -> None:
    """Whatever it was told of before it led."""
    with trips("S4"):
        world.checker.sessions.expiring(Leader(led_ms=300), SESSION, 9_000 * MS)
    world.checker.sessions.expiring(Leader(led_ms=TIMEOUT_MS), SESSION, 9_000 * MS)


# --- S1, S2, S3, S7 ------------------------------------------------------------------------------


def test_an_ephemeral_begins_with_an_open_session_and_has_no_children(world: World) -> None:
    """S1, at the transaction that breaks it; below any other znode there is room."""
    world.deliver(create("/e", owner=SESSION), create("/a", count=2), create("/a/b"))
    with trips("S1"):
        world.deliver(create("/e/below"))
    with trips("S1"):
        make_world().deliver(create("/f", owner=78))


def test_a_session_may_be_closed_twice(world: World) -> None:
    """Near miss: its client closes it at the moment at which it expires; the second is refused."""
    world.deliver(create("/e", owner=SESSION))
    world.deliver(txns.close_session(("/e",)), txns.error(-112))
    with trips("S3"):
        world.deliver(txns.close_session(()))


def test_an_id_is_given_once(world: World) -> None:
    """S7; many may be given in one batch."""
    world.deliver(txns.create_session(TIMEOUT_MS), session=79)
    with trips("S7"):
        world.deliver(txns.create_session(TIMEOUT_MS))


# --- C2, C4, C7, C8, S6, W7 ----------------------------------------------------------------------


def issue(world: World, path: str, connection: int, serial: int) -> None:
    """The client has asked for a write of this data."""
    world.checker.sessions.issued[path.encode()] = Issued("c1", connection, serial)


def test_what_a_client_asked_for_takes_effect_once_at_most(world: World) -> None:
    """C7. Near misses: one that is never seen, and one that is seen though nobody was answered."""
    issue(world, "/a", 1, 1)
    issue(world, "/never", 1, 2)
    issue(world, "/unknown", 1, 3)
    world.deliver(create("/a"), create("/unknown", count=2))
    world.deliver(txns.delete("/a"))
    with trips("C7"):
        world.deliver(create("/a", count=3))


def test_one_multi_may_write_the_same_twice(world: World) -> None:
    """Near miss of C7: both are one transaction."""
    issue(world, "/a", 1, 1)
    parts = (create("/a"), txns.set_data("/a", b"/a", 1))
    world.deliver(txns.multi((1, 5), parts))


def test_writes_take_effect_in_the_order_in_which_they_were_asked_for(world: World) -> None:
    """C2 within a connection, S6 between two."""
    issue(world, "/a", 1, 1)
    issue(world, "/b", 1, 2)
    world.deliver(create("/b"))
    with trips("C2"):
        world.deliver(create("/a", count=2))
    world = make_world()
    issue(world, "/a", 1, 1)
    issue(world, "/b", 2, 2)
    world.deliver(create("/b"))
    with trips("S6"):
        world.deliver(create("/a", count=2))


def test_another_session_of_the_client_is_another_matter(world: World) -> None:
    """Near miss of S6: what the session before had asked for may come late."""
    world.deliver(txns.create_session(TIMEOUT_MS), session=79)
    issue(world, "/a", 1, 1)
    issue(world, "/b", 2, 2)
    world.deliver(create("/b"), session=79)
    world.deliver(create("/a", count=2))


def test_a_member_takes_no_client_that_is_ahead(world: World) -> None:
    """C4; one that has seen just as much is welcome."""
    world.checker.sessions.admitted("member 1", 5, 5)
    with trips("C4"):
        world.checker.sessions.admitted("member 1", 6, 5)


def test_a_member_that_lags_within_the_bound_may_answer(world: World) -> None:
    """C8: stale reads are legal up to the bound, and no longer."""
    sessions = world.checker.sessions
    sessions.committed_us[:] = [0, 10 * MS]
    bound_ms = int((1.5 * SYNC_LIMIT + TIMELY_SLACK_TICKS) * TICK_MS)
    sessions.require_timely("member 1", 1, (10 + bound_ms) * MS)
    sessions.require_timely("member 1", 2, 60_000 * MS)  # it has everything there is
    with trips("C8"):
        sessions.require_timely("member 1", 1, (11 + bound_ms) * MS)


def test_a_connection_that_ended_has_no_watch(world: World) -> None:
    """W7."""
    world.checker.sessions.require_no_ghosts("member 1", [])
    with trips("W7"):
        world.checker.sessions.require_no_ghosts("member 1", ["a connection"])
