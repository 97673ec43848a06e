"""Peer messages as bytes: every message round-trips, nothing else gets through."""

from typing import get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model.errors import RemoteProtocolError
from zabd.model.zxid import Zxid
from zabd.zab import messages as m
from zabd.zab.codec import FRAME_BYTES_MAX, Decoder, encode, encode_buffers
from zabd.zab.log import HEADER_SIZE, LogPosition

zxids = st.integers(0, 2**64 - 1).map(Zxid)
epochs = st.integers(0, 2**31 - 1)
members = st.integers(0, 254)
rounds = st.integers(0, 2**64 - 1)
positions = st.builds(LogPosition, zxids, st.binary(min_size=8, max_size=8))
cluster_ids = st.binary(min_size=16, max_size=16)
records = st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE + 40)
standings = st.sampled_from(m.Standing)
states = st.sampled_from(m.PeerState)

STRATEGIES: dict[type, st.SearchStrategy[m.Message]] = {
    m.Notification: st.builds(
        m.Notification,
        members,
        st.none() | cluster_ids,
        rounds,
        st.none() | members,
        zxids,
        epochs,
        states,
        standings,
        st.booleans(),
    ),
    m.FollowerInfo: st.builds(
        m.FollowerInfo,
        rounds,
        st.none() | cluster_ids,
        members,
        st.booleans(),
        epochs,
        positions,
        standings,
    ),
    m.LeaderInfo: st.builds(m.LeaderInfo, epochs),
    m.AckEpoch: st.builds(m.AckEpoch, epochs, positions),
    m.Diff: st.builds(m.Diff, positions),
    m.Trunc: st.builds(m.Trunc, positions),
    m.Snap: st.builds(m.Snap, positions),
    m.TruncRefused: st.builds(m.TruncRefused),
    m.Aligned: st.builds(m.Aligned, positions),
    m.SnapshotChunk: st.builds(
        m.SnapshotChunk, rounds, st.binary(max_size=64), st.booleans(), st.binary(max_size=64)
    ),
    m.Propose: st.builds(m.Propose, zxids, st.integers(1, 2**32 - 1), records),
    m.NewLeader: st.builds(m.NewLeader, epochs, cluster_ids, positions),
    m.AckNewLeader: st.builds(m.AckNewLeader, epochs, zxids),
    m.UpToDate: st.builds(m.UpToDate, zxids),
    m.Ack: st.builds(m.Ack, zxids),
    m.Commit: st.builds(m.Commit, zxids),
    m.Ping: st.builds(m.Ping, rounds),
    m.Pong: st.builds(m.Pong, rounds),
    m.Carried: st.builds(m.Carried, st.binary(max_size=64)),
}
any_message = st.one_of(*STRATEGIES.values())


def test_every_message_is_tried() -> None:
    """A new message must not escape the properties below."""
    assert set(STRATEGIES) == set(get_args(m.Message))


@given(st.lists(any_message, max_size=6), st.integers(1, 40))
def test_messages_survive_any_cutting_of_the_stream(sent: list[m.Message], size: int) -> None:
    """A link gives bytes in pieces that know nothing of frames."""
    stream = b"".join(map(encode, sent))
    decoder = Decoder()

    received = [
        message
        for start in range(0, len(stream), size)
        for message in decoder.feed(stream[start : start + size])
    ]

    assert received == sent
    assert [type(message) for message in received] == [type(message) for message in sent]
    assert decoder.pending_bytes == 0


@given(any_message)
def test_the_pieces_of_a_frame_make_the_same_message(message: m.Message) -> None:
    """A record is sent from where it lies; who receives it cannot tell."""
    [decoded] = Decoder().feed(b"".join(encode_buffers(message)))

    assert decoded == message


@given(st.binary(max_size=80))
def test_garbage_costs_only_the_link(chunk: bytes) -> None:
    """P22: whatever a stranger sends, the answer is one kind of error."""
    decoder = Decoder()
    try:
        decoder.feed(len(chunk).to_bytes(4, "big") + chunk)
    except RemoteProtocolError:
        return
    assert decoder.pending_bytes == 0


@given(any_message, st.data())
def test_a_flipped_byte_is_a_message_or_an_error(message: m.Message, data: st.DataObject) -> None:
    """Framing has no checksum of its own: what decodes still is a message of the right shape."""
    frame = bytearray(encode(message))
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    try:
        [decoded] = Decoder().feed(bytes(frame))
    except RemoteProtocolError:
        return
    assert type(decoded) in STRATEGIES


@pytest.mark.parametrize(
    "array",
    [
        [],
        ["Ack", 1],
        [len(STRATEGIES)],
        [-1, 0],
        [True, 0],
        [2],
        [2, 1, 1],
        [2, "1"],
        [2, 2**40],
        [2, None],
        [4, [1]],
        [4, [1, b"short"]],
        [0, 1, b"short id", 1, 1, 1, 1, 0, 0, False],
        [0, 1, None, 1, 1, 1, 1, 9, 0, False],
        {1: 2},
        5,
    ],
)
def test_a_wrong_shape_is_refused(array: object) -> None:
    """The number of fields, their types and their ranges are all checked."""
    body = msgpack.packb(array)

    with pytest.raises(RemoteProtocolError):
        Decoder().feed(len(body).to_bytes(4, "big") + body)


def test_a_length_is_checked_before_anything_is_kept_for_it() -> None:
    """P22: 1 GiB announced is 4 bytes received, and an end."""
    with pytest.raises(RemoteProtocolError, match="limit"):
        Decoder().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    """Nothing here recurses for ever on a stranger's word."""
    body = b"\x91" * 100_000 + b"\x00"

    with pytest.raises(RemoteProtocolError):
        Decoder().feed(len(body).to_bytes(4, "big") + body)
