"""Consensus: election, discovery, synchronisation and broadcast of opaque payloads, no I/O.

A `Peer` takes events and the time, and returns effects. Messages are in `zabd.zab.messages`, events
in `zabd.zab.events`, effects in `zabd.zab.effects`, and the bytes of messages in `zabd.zab.codec`.
"""

from zabd.zab import effects, events, messages
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.effects import Effect, Phase
from zabd.zab.events import Event
from zabd.zab.log import GENESIS, Batch, LogPosition
from zabd.zab.messages import Message, PeerState, Standing
from zabd.zab.peer import Peer
from zabd.zab.quorum import MajorityQuorum

__all__ = [
    "GENESIS",
    "Batch",
    "Effect",
    "EnsembleConfig",
    "Event",
    "LogPosition",
    "MajorityQuorum",
    "Message",
    "Peer",
    "PeerState",
    "Phase",
    "RecoveredState",
    "Standing",
    "effects",
    "events",
    "messages",
]
