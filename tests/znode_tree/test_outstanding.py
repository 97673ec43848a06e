"""The overlay of what is in flight: where it comes back to what it was."""

from tests.znode_tree.world import ALICE, World, plain

from zabd.model.ops import Check, CloseSession, CreateMode, Delete, Multi
from zabd.znode_tree import txns


def test_an_ephemeral_in_flight_survives_a_multi_that_only_wanted_to_delete_it() -> None:
    """O3, S2: the close of its session still has to find it."""
    world = World()
    world.prepare(plain("/f", CreateMode.EPHEMERAL))
    world.prepare(Multi((Delete("/f"), Check("/no"))))

    assert world.prepare(CloseSession()) == txns.close_session(["/f"])


def test_an_ephemeral_that_a_multi_only_wanted_to_create_leaves_nothing() -> None:
    """O3: nor does it stay in the books of its session for ever."""
    world = World()
    world.prepare(Multi((plain("/f", CreateMode.EPHEMERAL), Check("/no"))))

    assert not world.preparer._outstanding._by_owner
    assert world.prepare(CloseSession()) == txns.close_session([])


def test_ephemerals_are_listed_in_the_order_of_their_paths() -> None:
    """Applied or in flight, deleted and made again: one history, one txn."""
    world = World()
    world.create("/b", mode=CreateMode.EPHEMERAL)
    world.create("/d", mode=CreateMode.EPHEMERAL)
    world.prepare(plain("/c", CreateMode.EPHEMERAL))
    world.prepare(Delete("/b"))
    world.prepare(plain("/b", CreateMode.EPHEMERAL))
    world.prepare(plain("/a", CreateMode.EPHEMERAL))

    assert world.preparer._outstanding.ephemerals_of(ALICE) == ["/a", "/b", "/c", "/d"]
