"""The conversation on each link: what may come next, at each of its two ends (A1, A4, A5).

A link serves one leadership and is FIFO, so what an end has sent and received says exactly what it
may receive now. The steps here are the checker's own: they come from the messages, not from the
phases that the peers believe to be in.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from zabd.model.ids import Epoch
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Aligned,
    Carried,
    Commit,
    Diff,
    FollowerInfo,
    LeaderInfo,
    Message,
    NewLeader,
    Ping,
    Pong,
    Propose,
    Snap,
    Trunc,
    TruncRefused,
    UpToDate,
)

Fail: TypeAlias = Callable[[str, str], None]


class Step(IntEnum):
    """How far a conversation has come, in its order."""

    INTRODUCED = 0
    OFFERED = 1
    PROMISED = 2
    CUTTING = 3
    ALIGNED = 4
    INVITED = 5
    ACKED = 6
    SERVING = 7


_Span: TypeAlias = tuple[Step, Step]

LEARNER_HEARS: Final[Mapping[type[Message], _Span]] = MappingProxyType(
    {
        LeaderInfo: (Step.INTRODUCED, Step.INTRODUCED),
        Diff: (Step.PROMISED, Step.PROMISED),
        Trunc: (Step.PROMISED, Step.PROMISED),
        Snap: (Step.PROMISED, Step.PROMISED),
        Propose: (Step.ALIGNED, Step.SERVING),
        NewLeader: (Step.ALIGNED, Step.ALIGNED),
        UpToDate: (Step.ACKED, Step.ACKED),
        Commit: (Step.ALIGNED, Step.SERVING),
        Ping: (Step.PROMISED, Step.SERVING),
    }
)
LEADER_HEARS: Final[Mapping[type[Message], _Span]] = MappingProxyType(
    {
        AckEpoch: (Step.OFFERED, Step.OFFERED),
        Aligned: (Step.PROMISED, Step.PROMISED),
        TruncRefused: (Step.PROMISED, Step.PROMISED),
        AckNewLeader: (Step.INVITED, Step.INVITED),
        Ack: (Step.ACKED, Step.SERVING),
        Pong: (Step.PROMISED, Step.SERVING),
    }
)

_LEARNER_HEARD: Final[Mapping[type[Message], Step]] = MappingProxyType(
    {
        LeaderInfo: Step.OFFERED,
        Diff: Step.ALIGNED,
        Trunc: Step.CUTTING,
        Snap: Step.CUTTING,
        NewLeader: Step.INVITED,
        UpToDate: Step.SERVING,
    }
)
_LEARNER_SAID: Final[Mapping[type[Message], Step]] = MappingProxyType(
    {
        AckEpoch: Step.PROMISED,
        TruncRefused: Step.PROMISED,
        Aligned: Step.ALIGNED,
        AckNewLeader: Step.ACKED,
    }
)
_LEADER_HEARD: Final[Mapping[type[Message], Step]] = MappingProxyType(
    {AckEpoch: Step.PROMISED, AckNewLeader: Step.ACKED}
)
_LEADER_SAID: Final[Mapping[type[Message], Step]] = MappingProxyType(
    {LeaderInfo: Step.OFFERED, NewLeader: Step.INVITED, UpToDate: Step.SERVING}
)


class Talk:
    """One link as one of its ends knows it; `term` is the leadership it belongs to there."""

    __slots__ = ("acked", "acked_epoch", "info", "learns", "promise", "serve_from", "step", "term")

    def __init__(self, info: FollowerInfo, term: int, *, learns: bool) -> None:
        self.info = info
        self.term = term
        self.learns = learns
        """Whether this is the learner's end."""
        self.step = Step.INTRODUCED
        self.promise: AckEpoch | None = None
        self.acked_epoch: Epoch | None = None  # whose NEWLEADER was acknowledged here
        self.acked: Zxid = ZXID_ZERO  # the greatest zxid that was acknowledged here
        self.serve_from: Zxid | None = None

    def hear(self, message: Message, who: object, fail: Fail) -> None:
        """A message reaches this end: is it its turn?"""
        if isinstance(message, Carried):
            return
        expected = LEARNER_HEARS if self.learns else LEADER_HEARS
        kind = type(message)
        span = expected.get(kind)
        if span is None:
            fail("A5", f"{who} hears {message}, which its end of the link can never receive")
            return
        # A stream from the disk tells commits, until it is over; from then on UPTODATE has to be.
        early = kind is Commit and Step.INVITED <= self.step <= Step.ACKED
        if early or not span[0] <= self.step <= span[1]:
            check = "A4" if kind in {Ack, AckNewLeader} else "A1"
            fail(check, f"{who} hears {message} while the link is {self.step.name.lower()}")
        if isinstance(message, Propose):
            self._require_epoch(message, who, fail)
        self._note(message, _LEARNER_HEARD if self.learns else _LEADER_HEARD)

    def _require_epoch(self, message: Propose, who: object, fail: Fail) -> None:
        epoch = self.acked_epoch
        if epoch is not None and message.first.epoch != epoch:
            fail("A5", f"{who} hears a proposal from {message.first!r} on over a link of {epoch}")

    def say(self, message: Message) -> None:
        """This end says something."""
        self._note(message, _LEARNER_SAID if self.learns else _LEADER_SAID)

    def _note(self, message: Message, steps: Mapping[type[Message], Step]) -> None:
        step = steps.get(type(message))
        if step is not None:
            self.step = step
        match message:
            case AckEpoch():
                self.promise = message
            case AckNewLeader(epoch, zxid):
                self.acked_epoch, self.acked = epoch, zxid
            case Ack(zxid):
                self.acked = zxid
            case UpToDate(zxid):
                self.serve_from = zxid
            case _:
                pass
