"""A peer that tells a checker all that it hears and all that it asks for, and is one otherwise.

Where the host performs the effects itself (the core level), each check is made when the effect is
performed. Where it does not (the whole level), it is made here, when the effect is asked for: that
is never later.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.ids import Epoch
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import LogPosition
from zabd.zab.peer import Peer


class Listener(Protocol):
    """Who is told."""

    def heard(self, event: ev.Event) -> None:
        """The peer is about to take an event."""

    def asked(self, effects: list[fx.Effect]) -> None:
        """The peer has asked for effects."""

    def sends_votes(self, effects: list[fx.Effect]) -> list[fx.Effect]:
        """What the host has to do of them."""


class WatchedPeer(Peer):
    """A peer that is listened to."""

    __slots__ = ("_listener",)

    def __init__(
        self,
        config: EnsembleConfig,
        recovered: RecoveredState,
        rng: Random,
        trace: Callable[[str, Mapping[str, object]], None],
        listener: Listener,
    ) -> None:
        super().__init__(config, recovered, rng, trace)
        self._listener = listener

    def step(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
        """As a peer's, between two words to the listener."""
        self._listener.heard(event)
        effects = super().step(event, now_ms)
        self._listener.asked(effects)
        return self._listener.sends_votes(effects)


class Watcher:
    """Translates events and effects of peers into the checks of one ensemble."""

    def __init__(self, checker: ZabChecker) -> None:
        self.checker = checker
        self._truncations: dict[tuple[Incarnation, int], LogPosition] = {}
        self._appends: dict[tuple[Incarnation, int], LogPosition] = {}

    def heard(self, who: Incarnation, event: ev.Event, end_of_log: Callable[[], object]) -> None:
        """A member's peer takes an event."""
        checker = self.checker
        match event:
            case ev.Received(link, message):
                checker.received(who, link, message)
            case ev.Truncated(request_id, True):
                position = self._truncations.pop((who, request_id))
                end = end_of_log()
                assert isinstance(end, LogPosition), "where a log ends"
                checker.truncated(who, position, end)
            case ev.Truncated(_, False):
                checker.truncation_refused(who)
            case ev.SnapshotInstalled(_, position):
                checker.installed(who, position)
            case ev.Disconnected(link):
                checker.link_over(who, link)
            case ev.Notified(notification):
                checker.heard_vote(who, notification)
            case ev.Elected():
                who.named = True
            case ev.Confirm(token):
                checker.asked(who, token)
            case ev.Persisted(append_id) if who.leads is not None:
                position = self._appends.get((who, append_id), who.history.base)
                checker.counted_itself(who, position)
            case _:
                pass

    def asked(self, who: Incarnation, effects: list[fx.Effect], epoch: Epoch) -> None:
        """A member's peer asks for effects."""
        checker = self.checker
        for effect in effects:
            checker.asks(who, effect, epoch)
            match effect:
                case fx.Send(link, message):
                    checker.sent(who, link, message)
                case fx.Append():
                    self._appends[who, effect.append_id] = who.history.last
                case fx.Deliver(batches):
                    checker.delivered(who, batches)
                case fx.Became():
                    checker.became(who, effect)
                case fx.Truncate(request_id, position):
                    checker.truncating(who, position)
                    self._truncations[who, request_id] = position
                case fx.InstallSnapshot(_, position):
                    checker.installing(who, position)
                case fx.Notify(_, notification):
                    checker.voting(who, notification)
                case fx.Confirmed(token):
                    checker.confirmed(who, token)
                case _:
                    pass
