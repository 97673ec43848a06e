from zabd.cli.commands.watch import Change, Look, differences
from zabd.model.stat import Stat

BORN = Stat(10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 10)
CHANGED = BORN._replace(mzxid=12, version=1)
BORN_AGAIN = BORN._replace(czxid=20, mzxid=20)


def test_a_znode_comes_and_goes() -> None:
    """Seen between two looks."""
    absent, there = Look(None), Look(BORN, b"x", ("a",))

    assert differences(absent, there) == [Change("created", there, added=("a",))]
    assert differences(there, absent) == [Change("deleted", absent)]
    assert differences(absent, absent) == []


def test_new_data_and_new_children_are_two_changes() -> None:
    """They may both have happened since the last look."""
    before = Look(BORN, b"x", ("a", "b"))
    now = Look(CHANGED, b"y", ("b", "c"))

    assert differences(before, now) == [
        Change("changed", now),
        Change("children", now, added=("c",), removed=("a",)),
    ]


def test_a_znode_deleted_and_made_again_is_created() -> None:
    """Its czxid tells, even if nobody looked in between."""
    again = Look(BORN_AGAIN, b"x")

    assert differences(Look(BORN, b"x"), again) == [Change("created", again)]


def test_a_wake_up_without_a_change_says_nothing() -> None:
    """A new session looks again to be sure."""
    assert differences(Look(BORN, b"x", ("a",)), Look(BORN, b"x", ("a",))) == []
