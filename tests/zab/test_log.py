"""The record: framed once, believed only as far as its digests vouch for it."""

import copy
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model.zxid import COUNTER_MAX, Zxid
from zabd.zab.log import (
    GENESIS,
    GENESIS_CHAIN,
    HEADER_SIZE,
    Batch,
    LogPosition,
    LogTail,
    RecordError,
    chain_of,
    follows,
    frame_record,
    last_zxid,
    parse_header,
    verify_record,
)


def history(*steps: tuple[int, int, int], after: LogPosition = GENESIS) -> tuple[Batch, ...]:
    """Batches of (epoch, first counter, count), chained."""
    batches: list[Batch] = []
    chain = after.chain
    for epoch, counter, count in steps:
        record = frame_record(Zxid.of(epoch, counter), count, b"%d.%d" % (epoch, counter), chain)
        chain = chain_of(record)
        batches.append(Batch.of(record))
    return tuple(batches)


@given(st.integers(0, 2**31), st.integers(1, 2**31), st.integers(1, 1000), st.binary(max_size=99))
def test_a_record_gives_back_what_it_was_made_of(
    epoch: int, counter: int, count: int, payload: bytes
) -> None:
    """The same bytes go to every log, so they alone must hold all that recovery needs."""
    first = Zxid.of(epoch, counter)
    record = frame_record(first, count, payload, b"previous")

    header, found = verify_record(record)

    assert (header.first, header.count, header.length) == (first, count, len(payload))
    assert header.previous == b"previous"
    assert found == payload
    assert last_zxid(header) == first + count - 1
    assert Batch.of(record).position == LogPosition(last_zxid(header), chain_of(record))


def test_no_bit_of_a_record_lies_outside_its_digests() -> None:
    """S4: any flipped bit is noticed, wherever it is."""
    record = frame_record(Zxid.of(1, 1), 2, b"payload", GENESIS_CHAIN)

    for place in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(RecordError):
            verify_record(bytes(damaged))


@pytest.mark.parametrize("size", [0, 4, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 3])
def test_a_cut_record_is_not_a_record(size: int) -> None:
    """A torn batch is cut whole; nothing of it may be taken for a batch."""
    record = frame_record(Zxid.of(1, 1), 1, b"payload", GENESIS_CHAIN)

    with pytest.raises(RecordError):
        verify_record(record[:size])


def test_zero_filled_space_is_never_a_header() -> None:
    """Segments are preallocated: what was never written reads as zeroes."""
    with pytest.raises(RecordError):
        parse_header(bytes(4096))


@pytest.mark.parametrize(("first", "count"), [(Zxid.of(1, 0), 1), (Zxid.of(1, COUNTER_MAX), 2)])
def test_a_record_stays_within_the_counters_of_its_epoch(first: Zxid, count: int) -> None:
    """R9: counters start at 1 and never carry into the epoch."""
    with pytest.raises(RecordError):
        parse_header(frame_record(first, count, b"", GENESIS_CHAIN))


def test_only_the_next_zxid_or_a_later_epochs_first_follows() -> None:
    """A2: a gap is damage, not an end."""
    assert follows(Zxid.of(2, 5), Zxid.of(2, 4))
    assert follows(Zxid.of(4, 1), Zxid.of(2, 4))
    assert not follows(Zxid.of(2, 6), Zxid.of(2, 4))
    assert not follows(Zxid.of(4, 2), Zxid.of(2, 4))
    assert not follows(Zxid.of(1, 1), Zxid.of(2, 4))


_near = st.builds(
    lambda epoch, counter: Zxid.of(epoch, counter % 2**32),
    st.integers(0, 3),
    st.integers(-3, 3),
)


@given(_near, _near)
def test_what_follows_is_of_the_same_epoch_or_begins_a_later_one(first: Zxid, after: Zxid) -> None:
    """Also where a counter is used up, or an epoch has only begun."""
    same = first.epoch == after.epoch and first.counter == after.counter + 1
    begins = first.epoch > after.epoch and first.counter == 1
    assert follows(first, after) is (same or begins)


def test_a_tail_finds_boundaries_not_zxids() -> None:
    """TRUNC falls on batch ends, because only those are the same on all members."""
    one, two, three = history((1, 1, 3), (1, 4, 2), (3, 1, 1))
    tail = LogTail(GENESIS, (one, two, three))

    assert tail.last == three.position
    assert tail.boundary(Zxid.of(1, 4)) == one.position
    assert tail.boundary(Zxid.of(2, 9)) == two.position
    assert tail.boundary(0) == GENESIS
    ends = [0, one.last, two.last, three.last]
    asked = [zxid + more for zxid in ends for more in (0, 1)]
    assert [zxid for zxid in asked if tail.ends_at(zxid)] == ends
    assert tail.contains(two.position)
    assert not tail.contains(LogPosition(two.last, b"another."))
    assert tail.between(one.last, three.last) == (two, three)
    assert tail.after(two.last) == [three]

    tail.truncate(one.last)

    assert (tail.last, len(tail), tail.size_bytes) == (one.position, 1, len(one.record))


def test_a_tail_forgets_only_what_is_settled() -> None:
    """L3: an entry that may still be truncated or proposed again has to stay."""
    batches = history(*((1, counter, 1) for counter in range(1, 101)))
    tail = LogTail(GENESIS, batches)

    tail.trim(batches[9].last, batches_max=40)
    assert (tail.base, len(tail)) == (batches[9].position, 90)

    tail.trim(batches[-1].last, batches_max=40)
    assert (tail.base, len(tail)) == (batches[69].position, 30)
    assert tail.boundary(batches[5].last) is None
    assert all(follows(b.first, a.last) for a, b in pairwise(tail.after(0)))


def test_a_copied_tail_shares_batches_but_not_changes() -> None:
    """The exhaustive search copies peers at every step."""
    tail = LogTail(GENESIS, history((1, 1, 1), (1, 2, 1)))
    twin = copy.deepcopy(tail)

    twin.truncate(Zxid.of(1, 1))

    assert (len(tail), len(twin)) == (2, 1)
    assert twin.after(0)[0] is tail.after(0)[0]
