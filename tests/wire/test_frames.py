"""Frames are cut right however the bytes arrive, and no length makes the reader hold more."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model import RemoteProtocolError
from zabd.wire import FrameError, FrameReader, frame


def length(size: int) -> bytes:
    """A frame's length, alone."""
    return struct.pack(">i", size)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_any_chunking_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    """TCP cuts where it likes."""
    stream = b"".join(map(frame, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader(limit=64)

    got = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:stop])

    assert got == bodies
    assert reader.pending_bytes == 0


def test_one_byte_at_a_time() -> None:
    """The slowest sender is understood as well as any (P2)."""
    reader = FrameReader()
    stream = frame(b"first") + frame(b"") + frame(b"x" * 20)

    got = [got for at in range(len(stream)) for got in reader.feed(stream[at : at + 1])]

    assert got == [b"first", b"", b"x" * 20]


def test_pending_bytes_counts_what_is_held() -> None:
    """A deadline for slow frames starts when this leaves 0."""
    reader = FrameReader()

    assert reader.feed(frame(b"whole") + length(100) + b"part") == [b"whole"]
    assert reader.pending_bytes == 8
    assert reader.feed(b"!" * 96) == [b"part" + b"!" * 96]
    assert reader.pending_bytes == 0


def test_a_frame_of_the_limit_is_taken() -> None:
    """jute.maxbuffer itself is still allowed, and a whole megabyte arrives in one piece."""
    reader = FrameReader()
    body = bytes(1_048_575)
    stream = frame(body)

    got = [
        whole
        for at in range(0, len(stream), 65_536)
        for whole in reader.feed(stream[at : at + 65_536])
    ]

    assert got == [body]


@pytest.mark.parametrize("size", [1_048_576, 2**31 - 1])
def test_an_over_long_request_is_known_by_its_header(size: int) -> None:
    """It can be answered with BadArguments, which tells the client more than a closed link (P1)."""
    reader = FrameReader()

    with pytest.raises(FrameError) as refused:
        reader.feed(frame(b"before") + length(size) + struct.pack(">ii", 7, 5) + b"data")

    assert refused.value.header == reader.header == (7, 5)
    assert refused.value.frames == [b"before"]


def test_an_over_long_request_waits_for_its_header() -> None:
    """Its eight bytes are all that is waited for."""
    reader = FrameReader(limit=100)
    stream = length(101) + struct.pack(">ii", 7, 5)

    for at in range(len(stream) - 1):
        assert reader.feed(stream[at : at + 1]) == []
    with pytest.raises(FrameError, match="101"):
        reader.feed(stream[-1:])

    assert reader.header == (7, 5)


@pytest.mark.parametrize("size", [-1, -5, -(2**31)])
@pytest.mark.parametrize("cut", [1, 4])
def test_a_negative_length_is_refused_at_once(size: int, cut: int) -> None:
    """There is no request behind it that could be answered (P1)."""
    reader = FrameReader()
    stream = length(size)
    reader.feed(stream[: cut - 1])

    with pytest.raises(FrameError) as refused:
        reader.feed(stream[cut - 1 :])

    assert refused.value.header is None
    assert refused.value.frames == []


@pytest.mark.parametrize("start", [length(-1), length(2**30) + struct.pack(">ii", 1, 1)])
def test_a_broken_stream_stays_broken(start: bytes) -> None:
    """After a bad length nobody knows where the next frame starts."""
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError):
        reader.feed(start + b"x" * 1000)

    with pytest.raises(FrameError):
        reader.feed(frame(b"innocent"))
    assert reader.pending_bytes <= 12


def test_a_promised_megabyte_costs_what_has_come() -> None:
    """Two thousand connections that promise a megabyte each must not cost two gigabytes (P1)."""
    reader = FrameReader()

    reader.feed(length(1_048_575) + bytes(100))

    assert sys.getsizeof(reader._partial) < 300


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_frames_or_refused(chunks: list[bytes]) -> None:
    """Garbage costs the sender its link and nothing else."""
    reader = FrameReader(limit=64)
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except FrameError:
        assert reader.pending_bytes <= 12
    else:
        assert reader.pending_bytes < 64 + 4
