"""A small exact world for searches: real peers, and all that can happen to them next.

Time stands still: nothing is late, and what a timeout would do is an action of its own. Elections
are adversarial: any member that looks may be told that it leads, or whom to follow, so votes are
not modelled, and neither are pings. Links are FIFO and break with a prefix; disks complete their
requests one by one, or lose them. That a crash falls between two effects of a step is covered: what
it had sent may be cut off anywhere, and what it had asked of the disk may be lost from anywhere on.

Peers, messages, ghosts and disk requests are numbered when they first appear, and what a peer or
the checker does is computed once for each pair of state and event. So a state is a short tuple.
"""

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple, TypeAlias

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.search_ghost import Ghost, Store
from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import LinkId, MemberId
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.config import EnsembleConfig
from zabd.zab.log import Batch
from zabd.zab.messages import Message, PeerState, Ping, Pong
from zabd.zab.peer import Peer

DOWN: Final = -1

DiskRequest: TypeAlias = fx.Append | fx.Truncate | fx.PersistEpochs


class Beginning(StrEnum):
    """Where all schedules begin."""

    ESTABLISHED = "established"
    """All follow the leader of epoch 1, and nothing was ever written."""
    LEFT_BEHIND = "left behind"
    """Its first transaction is everywhere, the second one on its own disk alone, and it has
    crashed; the others are in epoch 2. What a schedule may do comes on top of that."""


class Bounds(NamedTuple):
    """How much may happen in one schedule."""

    members: int = 3
    txns: int = 2
    crashes: int = 1
    epochs: int = 2
    cuts: int = 0
    begins: Beginning = Beginning.ESTABLISHED


class Link(NamedTuple):
    """One connection: what is under way on it, and which of its ends are open. Messages by number.

    What one end sent before it closed still arrives at the other, or is cut off anywhere.
    """

    id: LinkId
    learner: MemberId
    leader: MemberId
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    learner_open: bool = True
    leader_open: bool = True
    cut: bool = False

    def end(self, member: MemberId) -> str:
        """The name of this member's field: whether its end is open."""
        return "learner_open" if member == self.learner else "leader_open"


class State(NamedTuple):
    """Everything there is at one moment. Peers and the ghost by number."""

    peers: tuple[int, ...]
    disks: tuple[tuple[int, ...], ...]  # two lanes for each member: its log, its epochs
    links: tuple[Link, ...]
    ghost: int
    txns: int
    crashes: int
    cuts: int


class Action(NamedTuple):
    """One thing that can happen next."""

    kind: str
    member: MemberId = 0
    other: int = 0  # a member, a link, or how many requests a crash leaves behind
    also: int = 0  # of a crash: whether the request for the epochs is left too


class Broken(NamedTuple):
    """What a step has come to if it broke a check."""

    error: InvariantError


class _Step(NamedTuple):
    """What one event makes of one peer."""

    peer: int
    effects: tuple[fx.Effect, ...]


class World:
    """Peers of one ensemble, and the rules of what can happen to them."""

    def __init__(self, bounds: Bounds, off: frozenset[str] = frozenset()) -> None:
        self.bounds = bounds
        self.voters: tuple[MemberId, ...] = tuple(range(1, bounds.members + 1))
        self._configs = {m: EnsembleConfig(me=m, voters=self.voters) for m in self.voters}
        self._rng = Random(0)
        self._peers: list[Peer] = []
        self._peer_numbers: dict[object, int] = {}
        self._messages: list[Message] = []
        self._message_numbers: dict[Message, int] = {}
        self._requests: list[DiskRequest] = []
        self._request_numbers: dict[object, int] = {}
        self._ghosts: list[Ghost] = []
        self._ghost_numbers: dict[object, int] = {}
        self._steps: dict[tuple[int, object], _Step | Broken] = {}
        self._judged: dict[tuple[object, ...], int | Broken] = {}
        self._off = off

    # --- numbers -------------------------------------------------------------------------------

    def _number_peer(self, member: MemberId, peer: Peer) -> int:
        m = peer._m  # noqa: SLF001 - rounds and failures only pace elections, which are ours here
        m.round = m.failures = 0
        key = (member, peer.state_key())
        number = self._peer_numbers.setdefault(key, len(self._peers))
        if number == len(self._peers):
            self._peers.append(peer)
        return number

    def _number_message(self, message: Message) -> int:
        number = self._message_numbers.setdefault(message, len(self._messages))
        if number == len(self._messages):
            self._messages.append(message)
        return number

    def _number_request(self, request: DiskRequest) -> int:
        match request:  # their own numbers say nothing here
            case fx.Append(_, record):
                key: object = record
            case fx.Truncate(_, position):
                key = position
            case fx.PersistEpochs(_, accepted, current, cluster_id):
                key = (accepted, current, cluster_id)
        number = self._request_numbers.setdefault(key, len(self._requests))
        if number == len(self._requests):
            self._requests.append(request)
        return number

    def _number_ghost(self, ghost: Ghost) -> int:
        number = self._ghost_numbers.setdefault(ghost.key(), len(self._ghosts))
        if number == len(self._ghosts):
            self._ghosts.append(ghost)
        return number

    def peer(self, state: State, member: MemberId) -> Peer | None:
        """A member's peer, to look at; None while it is down."""
        number = state.peers[member - 1]
        return None if number == DOWN else self._peers[number]

    def message(self, number: int) -> Message:
        """A message that was numbered."""
        return self._messages[number]

    def request(self, number: int) -> DiskRequest:
        """A disk request that was numbered."""
        return self._requests[number]

    def store(self, state: State, member: MemberId) -> Store:
        """What a member's disk holds."""
        return self._ghosts[state.ghost].store(member)

    # --- where a search begins -------------------------------------------------------------------

    def begin(self) -> State:
        """Everybody is up and looks for a leader; nothing was ever written."""
        bounds = self.bounds
        ghost = self._number_ghost(Ghost(self.voters, self._off))
        nothing = tuple(DOWN for _ in self.voters)
        disks: tuple[tuple[int, ...], ...] = ((),) * (2 * len(self.voters))
        more = bounds.begins is Beginning.LEFT_BEHIND
        txns, crashes = bounds.txns + 2 * more, bounds.crashes + more
        state = State(nothing, disks, (), ghost, txns, crashes, bounds.cuts)
        for member in self.voters:
            state = self.do(state, Action("restart", member))
        return state

    def prelude(self, state: State) -> Generator[Action, State]:
        """The actions that lead to where a search begins; each state they lead to is sent in.

        Which member leads makes no difference: they differ in nothing but their numbers, and votes,
        which would look at those, are not modelled.
        """
        state = yield from self._establish(state, self.voters)
        if self.bounds.begins is Beginning.LEFT_BEHIND:
            state = yield Action("submit", 1)
            state = yield from self._settle(state)
            state = yield Action("submit", 1)
            state = yield Action("crash", 1, len(state.disks[0]))
            for link in state.links:
                state = yield Action("lose", link.learner, link.id)
            yield from self._establish(state, self.voters[1:])

    def _establish(
        self, state: State, members: Sequence[MemberId]
    ) -> Generator[Action, State, State]:
        leader, *others = members
        state = yield Action("elect", leader)
        for member in others:
            state = yield Action("follow", member, leader)
        return (yield from self._settle(state))

    def _settle(self, state: State) -> Generator[Action, State, State]:
        """Until no message and no disk request is under way."""
        while True:
            going_on = (each for each in self.actions(state) if each.kind in {"deliver", "persist"})
            action = next(going_on, None)
            if action is None:
                return state
            state = yield action

    # --- what can happen -------------------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """All that can happen next, within the bounds."""
        for link in state.links:
            yield from self._link_actions(state, link)
        highest = max(
            (peer.accepted_epoch for m in self.voters if (peer := self.peer(state, m))), default=0
        )
        for member in self.voters:
            if state.peers[member - 1] == DOWN:
                yield Action("restart", member)
                continue
            for lane in (0, 1):
                if state.disks[2 * member - 2 + lane]:
                    yield Action("persist", member, lane)
            yield from self._peer_actions(state, member, highest)
            if state.crashes:
                log, epochs = state.disks[2 * member - 2], state.disks[2 * member - 1]
                for kept in range(len(log) + 1):
                    for also in range(len(epochs) + 1):
                        yield Action("crash", member, kept, also)

    def _link_actions(self, state: State, link: Link) -> Iterator[Action]:
        for member, queue, mine, theirs in (
            (link.leader, link.up, link.leader_open, link.learner_open),
            (link.learner, link.down, link.learner_open, link.leader_open),
        ):
            if not mine:
                continue
            if queue:
                yield Action("deliver", member, link.id)
            if not theirs or link.cut:
                yield Action("lose", member, link.id)
        if state.cuts and link.learner_open and link.leader_open and not link.cut:
            yield Action("cut", 0, link.id)

    def _peer_actions(self, state: State, member: MemberId, highest: int) -> Iterator[Action]:
        peer = self._peers[state.peers[member - 1]]
        match peer.state:
            case PeerState.LOOKING if peer._m.quiet:  # noqa: SLF001 - E2: it votes only then
                if highest < self.bounds.epochs:
                    yield Action("elect", member)
                for other in self.voters:
                    leader = self.peer(state, other)
                    if leader is not None and leader.state is PeerState.LEADING:
                        yield Action("follow", member, other)
            case PeerState.LEADING:
                if state.txns and peer.can_submit:
                    yield Action("submit", member)
                elif not peer.serving and not any(member == link.leader for link in state.links):
                    yield Action("give up", member)
            case _:
                pass

    # --- what comes of it ------------------------------------------------------------------------

    def do(self, state: State, action: Action) -> State:
        """The state after an action. Raises InvariantError."""
        match action:
            case Action("restart", member):
                return self._restart(state, member)
            case Action("elect", member):
                return self._event(state, member, ev.Elected(member))
            case Action("follow", member, other):
                return self._event(state, member, ev.Elected(other))
            case Action("give up", member):
                return self._event(state, member, ev.Abdicate("nobody follows"))
            case Action("submit", member):
                state = state._replace(txns=state.txns - 1)
                return self._event(state, member, ev.Submit(1, b"%d" % state.txns))
            case Action("persist", member, lane):
                return self._persist(state, member, lane)
            case Action("deliver", member, link_id):
                return self._deliver(state, member, link_id)
            case Action("lose", member, link_id):
                return self._lose(state, member, link_id)
            case Action("cut", _, link_id):
                state = state._replace(cuts=state.cuts - 1)
                return self._set_link(state, _find(state, link_id)._replace(cut=True))
            case Action("crash", member, kept, also):
                return self._crash(state, member, kept, also)
            case _:
                raise AssertionError(f"there is no action {action}")

    def _restart(self, state: State, member: MemberId) -> State:
        found = self.store(state, member).recovered()

        def recover(ghost: Ghost) -> None:
            ghost.lives[member] = ghost.checker.recovered(member, found)

        state = self._judge(state, member, ("recovered",), recover)
        peer = Peer(self._configs[member], found, self._rng)
        number = self._number_peer(member, peer)
        return self._event(_set_peer(state, member, number), member, ev.Start())

    def _crash(self, state: State, member: MemberId, kept: int, also: int) -> State:
        log, epochs = state.disks[2 * member - 2], state.disks[2 * member - 1]
        for number in log[:kept]:
            state = self._make_durable(state, member, number)
        for number in epochs[:also]:
            state = self._make_durable(state, member, number)
        state = _set_disk(_set_disk(state, member, 0, ()), member, 1, ())
        state = self._judge(state, member, ("down",), lambda ghost: ghost.lives.pop(member))
        for link in state.links:
            if member in (link.learner, link.leader):
                state = self._close(state, member, link)
        return _set_peer(state, member, DOWN)._replace(crashes=state.crashes - 1)

    def _make_durable(self, state: State, member: MemberId, number: int) -> State:
        request = self._requests[number]

        def keep(ghost: Ghost) -> None:
            store = ghost.store(member)
            match request:
                case fx.Append(_, record):
                    ghost.keep(store.append(Batch.of(record)))
                case fx.Truncate(_, position):
                    ghost.keep(store.cut(position))
                case fx.PersistEpochs(_, accepted, current, cluster_id):
                    kept = Store(member, accepted, current, cluster_id, store.batches)
                    ghost.keep(kept)
                    ghost.checker.epochs_durable(member)

        return self._judge(state, member, ("durable", number), keep)

    def _persist(self, state: State, member: MemberId, lane: int) -> State:
        """The disk has done the first request of a lane, and says so."""
        number, *left = state.disks[2 * member - 2 + lane]
        state = self._make_durable(state, member, number)
        state = _set_disk(state, member, lane, tuple(left))
        m = self._peers[state.peers[member - 1]]._m  # noqa: SLF001 - the numbers it gave them
        match self._requests[number]:
            case fx.Append(_, record):
                end = Batch.of(record).position
                state = self._judge(
                    state,
                    member,
                    ("counted", number),
                    lambda ghost: (
                        ghost.checker.counted_itself(ghost.lives[member], end)
                        if ghost.lives[member].leads is not None
                        else None
                    ),
                )
                return self._event(state, member, ev.Persisted(m.appends[0].append_id))
            case fx.Truncate(_, position):
                end = self.store(state, member).end
                state = self._judge(
                    state,
                    member,
                    ("truncated", number),
                    lambda ghost: ghost.checker.truncated(ghost.lives[member], position, end),
                )
                assert m.truncating is not None, "it has asked for that"
                return self._event(state, member, ev.Truncated(m.truncating.request_id, done=True))
            case fx.PersistEpochs():
                assert m.persisting is not None, "it has asked for that"
                return self._event(state, member, ev.EpochsPersisted(m.persisting.request_id))

    # --- links -----------------------------------------------------------------------------------

    def _deliver(self, state: State, member: MemberId, link_id: LinkId) -> State:
        link = _find(state, link_id)
        if member == link.leader:
            number, link = link.up[0], link._replace(up=link.up[1:])
        else:
            number, link = link.down[0], link._replace(down=link.down[1:])
        event = ev.Received(link_id, self._messages[number])
        return self._event(self._set_link(state, link), member, event)

    def _lose(self, state: State, member: MemberId, link_id: LinkId) -> State:
        state = self._close(state, member, _find(state, link_id))
        return self._event(state, member, ev.Disconnected(link_id))

    def _close(self, state: State, member: MemberId, link: Link) -> State:
        """One end is gone: nothing arrives there any more."""
        if member == link.learner:
            link = link._replace(learner_open=False, down=())
        else:
            link = link._replace(leader_open=False, up=())
        return self._set_link(state, link)

    def _set_link(self, state: State, link: Link) -> State:
        links = [each for each in state.links if each.id != link.id]
        if link.learner_open or link.leader_open:
            links.append(link)
        return state._replace(links=tuple(sorted(links)))

    def _dial(self, state: State, member: MemberId, other: MemberId) -> State:
        """A dial succeeds at once: the target is up, and the smallest free number is the link's."""
        used = {link.id for link in state.links}
        base = (member * 10 + other) * 10
        link_id = next(number for number in range(base, base + 10) if number not in used)
        state = self._set_link(state, Link(link_id, member, other))
        return self._event(state, member, ev.Dialled(link_id, other))

    # --- steps -----------------------------------------------------------------------------------

    def _event(self, state: State, member: MemberId, event: ev.Event) -> State:
        """A peer takes an event, the checker looks on, and its effects are done."""
        before = state.peers[member - 1]
        step = self._steps.get((before, event))
        if step is None:
            step = self._steps[before, event] = self._step(before, member, event)
        if isinstance(step, Broken):
            raise step.error
        state = self._judge(
            state,
            member,
            (before, event),
            lambda ghost: self._watch(ghost, member, event, step.effects, self._peers[step.peer]),
        )
        state = _set_peer(state, member, step.peer)
        for effect in step.effects:
            state = self._perform(state, member, effect)
        return state

    def _step(self, number: int, member: MemberId, event: ev.Event) -> _Step | Broken:
        before = self._peers[number]
        config = self._configs[member]
        shared = (config, self._rng, before._m.quorum)  # noqa: SLF001 - they never change
        peer = copy.deepcopy(before, {id(each): each for each in shared})
        try:
            effects = peer.step(event, 0)
        except RemoteProtocolError as error:
            return Broken(InvariantError("A5", f"member {member} refuses {event}: {error}"))
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is a finding (X6)
            return Broken(InvariantError("X6", f"member {member} at {event}: {error!r}"))
        return _Step(self._number_peer(member, peer), tuple(effects))

    def _judge(
        self,
        state: State,
        member: MemberId,
        what: tuple[object, ...],
        change: Callable[[Ghost], object],
    ) -> State:
        """Let the checker see something; what it says of a ghost is computed once."""
        key = (state.ghost, member, *what)
        judged = self._judged.get(key)
        if judged is None:
            ghost = self._ghosts[state.ghost].fork(member)
            try:
                change(ghost)
                judged = self._number_ghost(ghost)
            except InvariantError as error:
                judged = Broken(error)
            self._judged[key] = judged
        if isinstance(judged, Broken):
            raise judged.error
        return state._replace(ghost=judged)

    def _watch(
        self,
        ghost: Ghost,
        member: MemberId,
        event: ev.Event,
        effects: tuple[fx.Effect, ...],
        peer: Peer,
    ) -> None:
        """What the host of a bare peer tells the checker (see `core_process`)."""
        checker, life = ghost.checker, ghost.lives[member]
        match event:
            case ev.Received(link, message):
                checker.received(life, link, message)
            case ev.Disconnected(link):
                checker.link_over(life, link)
            case ev.Elected():
                life.named = True
            case _:
                pass
        for effect in effects:
            if not isinstance(effect, fx.Notify):  # votes are not modelled
                checker.asks(life, effect, peer.epoch)
            match effect:
                case fx.Send(link, message):
                    checker.sent(life, link, message)
                case fx.Deliver(batches):
                    checker.delivered(life, batches)
                case fx.Became():
                    checker.became(life, effect)
                case fx.Truncate(_, position):
                    checker.truncating(life, position)
                case _:
                    pass
        for gone in (event, *effects):
            if isinstance(gone, ev.Disconnected | fx.Hangup):
                ghost.forget_link(member, gone.link)

    def _perform(self, state: State, member: MemberId, effect: fx.Effect) -> State:
        match effect:
            case fx.Send(_, Ping() | Pong()) | fx.Notify() | fx.Deliver() | fx.Became():
                return state
            case fx.Send(link_id, message):
                return self._send(state, member, link_id, message)
            case fx.Append() | fx.Truncate():
                return self._ask(state, member, 0, effect)
            case fx.PersistEpochs():
                return self._ask(state, member, 1, effect)
            case fx.Dial(other):
                return self._dial(state, member, other)
            case fx.Hangup(link_id):
                if any(link.id == link_id for link in state.links):
                    return self._close(state, member, _find(state, link_id))
                return state
            case _:
                raise AssertionError(f"{effect} does not happen in worlds this small")

    def _send(self, state: State, member: MemberId, link_id: LinkId, message: Message) -> State:
        link, number = _find(state, link_id), self._number_message(message)
        if link.cut:
            return state
        if member == link.learner and link.leader_open:
            link = link._replace(up=(*link.up, number))
        elif member == link.leader and link.learner_open:
            link = link._replace(down=(*link.down, number))
        return self._set_link(state, link)

    def _ask(self, state: State, member: MemberId, lane: int, request: DiskRequest) -> State:
        queue = (*state.disks[2 * member - 2 + lane], self._number_request(request))
        return _set_disk(state, member, lane, queue)


def _find(state: State, link_id: LinkId) -> Link:
    return next(link for link in state.links if link.id == link_id)


def _set_peer(state: State, member: MemberId, number: int) -> State:
    peers = (*state.peers[: member - 1], number, *state.peers[member:])
    return state._replace(peers=peers)


def _set_disk(state: State, member: MemberId, lane: int, queue: tuple[int, ...]) -> State:
    at = 2 * member - 2 + lane
    return state._replace(disks=(*state.disks[:at], queue, *state.disks[at + 1 :]))
