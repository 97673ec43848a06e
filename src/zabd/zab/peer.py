"""The front door: one member's consensus, an event and the time in, effects out.

    state      looking ──Follow──▶ following / observing
                 ▲  │                  │
                 │  └─────Lead──▶ leading
                 └───────Look──────────┘

`TRANSITIONS` is that picture as a table, and is checked at run time. What the disk has answered is
booked here, once, whatever the peer is doing; then the event goes to the state it is in.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.effects import Effect, Phase
from zabd.zab.election import Looking
from zabd.zab.events import (
    Confirm,
    EpochsPersisted,
    Event,
    Persisted,
    Received,
    SnapshotInstalled,
    Start,
    StreamFailed,
    Submit,
    Truncated,
)
from zabd.zab.following import Following
from zabd.zab.leading import Leading
from zabd.zab.log import LogPosition
from zabd.zab.member import Follow, Lead, Look, Member, Trace, Transition
from zabd.zab.messages import PeerState, Standing
from zabd.zab.quorum import MajorityQuorum

if TYPE_CHECKING:
    from random import Random  # only its type: chance is passed in

Role: TypeAlias = Looking | Following | Leading

TRANSITIONS: Final[Mapping[tuple[type[Role], type[Transition]], type[Role]]] = {
    (Looking, Follow): Following,
    (Looking, Lead): Leading,
    (Following, Look): Looking,
    (Leading, Look): Looking,
}


def no_trace(name: str, facts: Mapping[str, object]) -> None:
    """The default trace: nobody listens."""


class Peer:
    """The protocol engine of one member.

    `recovered` is what its disk says. `step` takes every event, in order, and returns the effects
    to perform, in order. It raises LocalProtocolError for what the host may not do now, and
    RemoteProtocolError for what the other end of a link may not say: the host closes that link and
    then says Disconnected. In both cases there is nothing to perform.
    """

    __slots__ = ("_m", "_role", "_started")

    def __init__(
        self,
        config: EnsembleConfig,
        recovered: RecoveredState,
        rng: "Random",
        trace: Trace = no_trace,
    ) -> None:
        self._m = Member(config, recovered, rng, trace)
        self._role: Role = Looking(self._m, Look("this incarnation begins"))
        self._started = False

    # --- one door -------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """What to do about this event, at `now_ms` of a clock that never goes back."""
        m = self._m
        m.now_ms = now_ms
        try:
            if self._started and type(event) is Received:
                self._role.step(event)  # the commonest, with nothing to book
            else:
                self._take(event)
        except (LocalProtocolError, RemoteProtocolError):
            assert not m.outbox, "what must not be is found out before anything is done"
            assert m.transition is None
            raise
        self._change()
        effects, m.outbox = m.outbox, []
        return effects

    def _take(self, event: Event) -> None:
        if isinstance(event, Start):
            self._start()
        elif not self._started:
            raise LocalProtocolError("the first event of a peer is Start")
        else:
            self._book(event)
            self._role.step(event)

    def _start(self) -> None:
        if self._started:
            raise LocalProtocolError("a peer is started once")
        self._started = True
        self._role.enter()

    def _book(self, event: Event) -> None:
        m = self._m
        match event:
            case Persisted(append_id):
                m.persisted(append_id)
            case EpochsPersisted(request_id):
                m.epochs_persisted(request_id)
            case Truncated(request_id, done):
                m.truncated(request_id, done=done)
            case SnapshotInstalled(link, position):
                m.installed(link, position)
            case StreamFailed(link):
                m.install_failed(link)
            case Submit() | Confirm() if not isinstance(self._role, Leading):
                raise LocalProtocolError(f"{type(event).__name__} is for an established leader")
            case _:
                pass

    def _change(self) -> None:
        m = self._m
        while m.transition is not None:
            transition, m.transition = m.transition, None
            kind = TRANSITIONS[type(self._role), type(transition)]
            if isinstance(transition, Look):
                m.trace("looks", {"reason": transition.reason})
                m.failures += not m.became.serving
            self._role.leave()
            self._role = kind(m, transition)  # type: ignore[arg-type]  # the table pairs them
            self._role.enter()

    # --- what a host may ask --------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When to step with Elapsed at the latest, if nothing else happens."""
        return self._role.deadline_ms if self._started else None

    @property
    def quorum(self) -> MajorityQuorum:
        """How many of which voters are enough."""
        return self._m.quorum

    @property
    def state(self) -> PeerState:
        """Looking, following, leading or observing."""
        return self._m.became.state

    @property
    def phase(self) -> Phase:
        """How far it has come with its leader, or as one."""
        return self._m.became.phase

    @property
    def epoch(self) -> Epoch:
        """The epoch of the leadership it is in; the last one it was in while it has none."""
        return self._m.became.epoch

    @property
    def leader(self) -> MemberId | None:
        """The member it follows, itself if it leads, None while it looks."""
        return self._m.became.leader

    @property
    def serving(self) -> bool:
        """Whether clients may be served."""
        return self._m.became.serving

    @property
    def standing(self) -> Standing:
        """Whether it can vouch for its past.

        A blank member votes only in a founding, a damaged one never: it is repaired first.
        """
        return self._m.standing

    @property
    def waiting_for(self) -> tuple[MemberId, ...]:
        """While it looks: the voters it has not heard. A founding needs every one of them."""
        return self._role.waiting_for if isinstance(self._role, Looking) else ()

    @property
    def hopeless(self) -> tuple[MemberId, ...]:
        """While it looks: the damaged and blank voters, if they are too many for any election."""
        return self._role.hopeless if isinstance(self._role, Looking) else ()

    @property
    def leader_link(self) -> LinkId | None:
        """A learner's link to its leader, if there is one."""
        return self._role.link if isinstance(self._role, Following) else None

    @property
    def learner_links(self) -> Mapping[LinkId, MemberId]:
        """An established leader's learners that are in broadcast."""
        return self._role.in_step if isinstance(self._role, Leading) else {}

    @property
    def synced_followers(self) -> int:
        """How many voters besides an established leader are in broadcast."""
        voters = self._m.config.voters
        return sum(member in voters for member in self.learner_links.values())

    @property
    def learners_behind(self) -> int:
        """A leader's learners that are being synchronised."""
        return self._role.behind if isinstance(self._role, Leading) else 0

    @property
    def can_submit(self) -> bool:
        """Whether Submit is welcome: the leader is established and not too much is in flight."""
        return isinstance(self._role, Leading) and self._role.can_submit

    @property
    def undecided_since_ms(self) -> int | None:
        """When the last batch was proposed, if it is not committed here yet; else None."""
        m = self._m
        return m.appended_ms if m.committed < m.tail.last.zxid else None

    @property
    def next_zxid(self) -> Zxid:
        """The zxid of the next submitted transaction; LocalProtocolError but for a leader."""
        if not isinstance(self._role, Leading):
            raise LocalProtocolError("only a leader numbers transactions")
        return self._role.next_zxid

    def accepts(self, link: LinkId) -> bool:
        """Whether Carried frames on this link count now."""
        match self._role:
            case Following() as role:
                return role.in_step and link == role.link
            case Leading() as role:
                return role.established and role.is_in_step(link)
            case _:
                return False

    @property
    def committed_zxid(self) -> Zxid:
        """The commit point, as far as it is known here."""
        return self._m.committed

    @property
    def logged_zxid(self) -> Zxid:
        """The end of the history, on disk or on its way there."""
        return self._m.tail.last.zxid

    @property
    def durable_zxid(self) -> Zxid:
        """The end of what is known to be on disk."""
        return self._m.durable.zxid

    @property
    def delivered_zxid(self) -> Zxid:
        """The last transaction that was handed over."""
        return self._m.delivered

    @property
    def delivered(self) -> LogPosition:
        """The point of the history that was handed over."""
        position = self._m.tail.boundary(self._m.delivered)
        assert position is not None, "the tail begins at or before what was delivered"
        return position

    @property
    def accepted_epoch(self) -> Epoch:
        """The last epoch promised, durably."""
        return self._m.accepted_epoch

    @property
    def current_epoch(self) -> Epoch:
        """The last epoch whose initial history is here, durably."""
        return self._m.current_epoch

    @property
    def cluster_id(self) -> bytes | None:
        """The cluster this member belongs to; None while it is blank."""
        return self._m.cluster_id

    def state_key(self) -> tuple[object, ...]:
        """Equal for peers that will do the same, whatever the time; for searches."""
        return (
            self._started,
            type(self._role).__name__,
            self._m.state_key(),
            self._role.state_key(),
        )
