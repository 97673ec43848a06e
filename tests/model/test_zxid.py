"""A zxid is a plain number that knows its two halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model import COUNTER_MAX, ZXID_ZERO, Zxid

epochs = st.integers(0, 2**31 - 1)
counters = st.integers(0, COUNTER_MAX)


@given(epochs, counters)
def test_the_halves_come_back(epoch: int, counter: int) -> None:
    """Epoch and counter are what the zxid was made of."""
    zxid = Zxid.of(epoch, counter)

    assert (zxid.epoch, zxid.counter) == (epoch, counter)
    assert zxid == epoch * 2**32 + counter


@given(st.tuples(epochs, counters), st.tuples(epochs, counters))
def test_zxids_order_by_epoch_first(one: tuple[int, int], other: tuple[int, int]) -> None:
    """All of a later leader's transactions are greater than all of an earlier one's."""
    assert (Zxid.of(*one) < Zxid.of(*other)) == (one < other)


def test_a_zxid_shows_as_people_read_it() -> None:
    """Decimal epoch and counter, as transcripts have it; the number itself is still there."""
    zxid = Zxid.of(3, 1)

    assert repr(zxid) == str(zxid) == f"{zxid}" == "3:1"
    assert f"{zxid:#x}" == "0x300000001"
    assert repr(ZXID_ZERO) == "0:0"


def test_arithmetic_gives_an_integer() -> None:
    """A sum can leave the epoch, so that it is a zxid has to be said again."""
    assert type(Zxid.of(3, 1) + 1) is int


@pytest.mark.parametrize(("epoch", "counter"), [(-1, 0), (0, -1), (0, COUNTER_MAX + 1)])
def test_what_is_no_part_of_a_zxid_is_refused(epoch: int, counter: int) -> None:
    """A counter that overflows would pass for the next epoch."""
    with pytest.raises(ValueError, match="counter"):
        Zxid.of(epoch, counter)
