"""Mistakes about sessions, and about what reads and syncs promise: M38-M42, M46-M49, M59 and M69.

Those about watches are in `watching`.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.cluster_sim.mutants.watching import WATCHING
from zabd.model.errors import ErrorCode
from zabd.model.ids import LinkId, SessionId
from zabd.model.ops import Create, CreateMode, OpCode
from zabd.model.session import ConnectRequest
from zabd.model.zxid import Zxid
from zabd.replica import handshake as handshake_module
from zabd.replica import intake, messages, pipeline
from zabd.replica.clients import Clients
from zabd.replica.config import ReplicaConfig
from zabd.replica.connection import Connection, ConnectionState, Pending
from zabd.replica.handshake import Handshake
from zabd.replica.leadership import Leadership
from zabd.replica.messages import Answer, AnswerKind, Intent, Touches
from zabd.replica.pipeline import Pipeline
from zabd.replica.reads import READS
from zabd.replica.replica import Replica
from zabd.replica.session_tracker import SessionTracker
from zabd.wire import replies
from zabd.wire.requests import decode_op, decode_path_watch
from zabd.zab.leading import Leading
from zabd.znode_tree import prepare as prepare_module
from zabd.znode_tree import txns
from zabd.znode_tree.outstanding import Outstanding, PendingZnode
from zabd.znode_tree.prepare import Preparer
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.watches import WatchTable
from zabd.znode_tree.znode import stat_of

_PATIENCE: Final = 4  # times as long as it should: for ever, as far as reads are concerned
_REMEMBERED_MAX: Final = 50


def _ephemeral_left() -> list[Patch]:
    close_session = Preparer.close_session

    def forgetful(self: Preparer, zxid: int, time_ms: int, session_id: SessionId) -> txns.Txn:
        close_session(self, zxid, time_ms, session_id)
        return txns.close_session(())

    return [(Preparer, "close_session", forgetful)]


def _touches_kept() -> list[Patch]:
    carry = Replica._carry

    def silent(self: Replica, link: LinkId, message: messages.Message) -> None:
        if not isinstance(message, Touches):
            carry(self, link, message)

    return [(Replica, "_carry", silent)]


def _old_deadlines() -> list[Patch]:
    begin = Leadership.__init__
    before: WeakKeyDictionary[random.Random, SessionTracker] = WeakKeyDictionary()

    def begin_where_it_ended(
        self: Leadership,
        config: ReplicaConfig,
        tree: ZnodeTree,
        rng: random.Random,
        wall_ms: int,
        now_ms: int,
        *more: Any,  # the trace
    ) -> None:
        begin(self, config, tree, rng, wall_ms, now_ms, *more)
        tracker = before.setdefault(rng, self.tracker)  # one source of chance for each process
        for session_id in sorted(tree.sessions):
            if session_id not in tracker:
                tracker.track(session_id, tree.sessions[session_id], None, now_ms)
        tracker._looked_ms = now_ms  # or it would look like a pause
        self.tracker = tracker

    return [(Leadership, "__init__", begin_where_it_ended)]


def _session_replaced() -> list[Patch]:
    answered = Clients.answered

    def accommodating(self: Clients, answer: Answer, now_ms: int) -> None:
        waiting = self._in_flight.get(answer.request_id)
        if answer.kind is not AnswerKind.GONE or waiting is None:
            answered(self, answer, now_ms)
            return
        del self._in_flight[answer.request_id]
        connection, pending = waiting
        if connection.state is not ConnectionState.CLOSED:
            connection.session_id = 0
            timeout_ms = int.from_bytes(pending.frame, "big")
            self.handshake._ask(connection, OpCode.CREATE_SESSION, timeout_ms, now_ms)

    return [(Clients, "answered", accommodating)]


class _Anybody(int):
    """An owner who is whoever asks."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _owner_ignored() -> list[Patch]:
    find = SessionTracker.find

    def lenient(self: SessionTracker, session_id: SessionId) -> tuple[bool, int | None]:
        known, _ = find(self, session_id)
        return known, _Anybody()

    return [(SessionTracker, "find", lenient)]


def _last_seen_ignored() -> list[Patch]:
    greet = Handshake.greet

    def trusting(
        self: Handshake, connection: Connection, request: ConnectRequest, now_ms: int
    ) -> None:
        greet(self, connection, request._replace(last_zxid_seen=0), now_ms)

    return [(Handshake, "greet", trusting)]


def _dirty_read() -> list[Patch]:
    begin, get_data = Leadership.__init__, READS[OpCode.GET_DATA]
    led: WeakValueDictionary[int, Leadership] = WeakValueDictionary()

    def known(self: Leadership, config: ReplicaConfig, tree: ZnodeTree, *more: Any) -> None:
        begin(self, config, tree, *more)
        led[id(tree)] = self

    def hasty(
        tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
    ) -> bytes:
        path, watch = decode_path_watch(frame)
        leadership, node = led.get(id(tree)), tree.nodes.get(path)
        if leadership is None or leadership._tree is not tree or node is None or watch:
            return get_data(tree, watches, connection, xid, frame)
        view = leadership._preparer._outstanding.view(path)
        if not isinstance(view, PendingZnode):
            return get_data(tree, watches, connection, xid, frame)
        return replies.get_data_reply(xid, tree.zxid, view.data, replies.pack_stat(stat_of(node)))

    reads = {**READS, OpCode.GET_DATA: hasty}
    return [
        (Leadership, "__init__", known),
        (intake, "READS", reads),
        (pipeline, "READS", reads),
    ]


def _sync_is_local() -> list[Patch]:
    ask = Pipeline.ask

    def at_home(self: Pipeline, connection: Connection, pending: Pending) -> None:
        if pending.opcode == OpCode.SYNC:
            self._confirmed(connection, pending, self.tree.zxid)
        else:
            ask(self, connection, pending)

    return [(Pipeline, "ask", at_home)]


def _sync_unconfirmed() -> list[Patch]:
    ask_confirmation = Leadership.ask_confirmation

    def confident(self: Leadership) -> int | None:
        token = ask_confirmation(self)
        if token is not None:
            self._sync_rounds[-1].after = Zxid(self._tree.zxid)
            self.confirmed(token)
        return None

    has_quorum = Leading._has_quorum

    def slow_to_notice(self: Leading, heard_since_ms: int | None = None) -> bool:
        if heard_since_ms is not None:
            heard_since_ms -= _PATIENCE * self._m.config.sync_timeout_ms
        return has_quorum(self, heard_since_ms)

    def drop_late(self: Leading) -> None:
        patience_ms = _PATIENCE * self._m.config.sync_timeout_ms
        for learner in self._learners:
            if self._m.now_ms - learner.heard_ms > patience_ms:
                self._refuse(learner.link, "it is silent")

    return [
        (Leadership, "ask_confirmation", confident),
        (Leading, "_has_quorum", slow_to_notice),
        (Leading, "_drop_silent", drop_late),
    ]


def _read_overtakes() -> list[Patch]:
    enqueue = Pipeline._enqueue

    def eager(self: Pipeline, connection: Connection, pending: Pending) -> None:
        if pending.opcode in READS and not pending.frame[-1]:  # one that asks for no watch
            pending.reply = self._answer_here(
                connection, pending.xid, pending.opcode, pending.frame
            )
        enqueue(self, connection, pending)

    return [(Pipeline, "_enqueue", eager)]


def _write_overtakes_sync() -> list[Patch]:
    def at_once(self: Pipeline, connection: Connection, pending: Pending) -> None:
        connection.syncs_pending += pending.opcode == OpCode.SYNC
        self.ask(connection, pending)

    return [(Pipeline, "_ask_in_turn", at_once)]


def _refused_at_home() -> list[Patch]:
    ask, ask_held = Pipeline.ask, Pipeline._ask_held
    in_turn: WeakKeyDictionary[Pipeline, bool] = WeakKeyDictionary()

    def one_by_one(self: Pipeline, connection: Connection) -> None:
        in_turn[self] = True  # what they are answered goes out behind the last of them
        ask_held(self, connection)
        del in_turn[self]

    def knowing(self: Pipeline, connection: Connection, pending: Pending) -> None:
        if pending.opcode == OpCode.CREATE:
            op = decode_op(pending.opcode, pending.frame)
            assert isinstance(op, Create), "a create"
            if op.flags in _PLAIN and op.path in self.tree.nodes:
                code = ErrorCode.NODE_EXISTS
                pending.reply = replies.reply(pending.xid, self.tree.zxid, code)
                if self not in in_turn:
                    self._drain(connection)
                return
        ask(self, connection, pending)

    return [(Pipeline, "ask", knowing), (Pipeline, "_ask_held", one_by_one)]


_PLAIN: Final = frozenset((CreateMode.PERSISTENT, CreateMode.EPHEMERAL))


def _forwarded_again() -> list[Patch]:
    forward = Replica._forward
    sent: WeakKeyDictionary[Replica, tuple[LinkId, list[Intent], list[Intent]]]
    sent = WeakKeyDictionary()

    def persistent(self: Replica, intents: list[Intent]) -> None:
        link = self.peer.leader_link
        if link is None:
            return
        before, ours, lost = sent.get(self, (link, [], []))
        if before != link:
            ours, lost = [], ours
        back = [intent for intent in lost if intent.session_id in self.clients.by_session]
        lost = [intent for intent in lost if intent.session_id not in self.clients.by_session]
        ours = [*ours, *(i for i in intents if i.opcode == OpCode.SET_DATA)][-_REMEMBERED_MAX:]
        sent[self] = (link, ours, lost)
        forward(self, [*back, *intents])

    return [(Replica, "_forward", persistent)]


def _serves_on() -> list[Patch]:
    def confident(_self: Leading, *_since_ms: int) -> bool:
        return True

    return [(Leading, "_has_quorum", confident)]


def _held_for_ever() -> list[Patch]:
    def nothing(_self: Pipeline, _connection: Connection) -> None:
        return

    return [(Pipeline, "_ask_held", nothing)]


def _create_after_close() -> list[Patch]:
    def unmarked(_self: Outstanding, _zxid: int, _session_id: SessionId) -> None:
        return

    return [(Outstanding, "close_session", unmarked)]


def _sessions_forgotten() -> list[Patch]:
    begin, validate = Leadership.__init__, Leadership._validate

    def begin_with_none(
        self: Leadership,
        config: ReplicaConfig,
        tree: ZnodeTree,
        rng: random.Random,
        wall_ms: int,
        now_ms: int,
        *more: Any,  # the trace
    ) -> None:
        begin(self, config, tree, rng, wall_ms, now_ms, *more)
        self.tracker = SessionTracker(config.ensemble.tick_ms, now_ms)

    def validate_and_track(self: Leadership, intent: Intent, now_ms: int) -> None:
        session_id = intent.session_id
        if session_id in self._tree.sessions and session_id not in self.tracker:
            self.tracker.track(session_id, self._tree.sessions[session_id], None, now_ms)
        validate(self, intent, now_ms)

    return [
        (Leadership, "__init__", begin_with_none),
        (Leadership, "_validate", validate_and_track),
    ]


def _wall_clock() -> list[Patch]:
    half_tick = Replica._half_tick
    ahead: WeakKeyDictionary[Replica, int] = WeakKeyDictionary()

    def by_the_wall(self: Replica, now_ms: int) -> None:
        wall_ms = self._clock.wall_ms()
        half_tick(self, wall_ms - ahead.setdefault(self, wall_ms - now_ms))

    return [(Replica, "_half_tick", by_the_wall)]


def _password_ignored() -> list[Patch]:
    agreeable: Callable[[bytes, bytes], bool] = lambda _ours, _theirs: True  # noqa: E731
    return [(handshake_module, "hmac", SimpleNamespace(compare_digest=agreeable))]


def _below_ephemerals() -> list[Patch]:
    def none_is(_owner: int) -> bool:
        return False

    return [(prepare_module, "is_session", none_is)]


_LEADERS_CHANGE: Final = {
    "kinds": ("isolate the leader", "abdicate", "named leader"),
    "voters": 3,
    "observers": 0,
}

SESSIONS: Final = (
    Mutant(
        name="held-for-ever",
        bug="M103",
        what="what waits behind a sync is not handed on when the sync is answered",
        history="a client pipelines a sync and a write; the write is never answered, and neither "
        "is anything after it",
        reference="classical: the role of the commit processor",
        level="core",
        found_by=frozenset({"L2"}),
        patches=_held_for_ever,
        shape={"voters": 3, "kinds": ()},
    ),
    Mutant(
        name="touches-kept",
        bug="M38",
        what="a follower does not tell its leader which sessions it has heard",
        history="a client that only reads at a follower is expired, ping as it may",
        reference="ClickHouse Keeper pull request 121361; ZooKeeper's touch table in its PING",
        level="core",
        found_by=frozenset({"S4"}),
        patches=_touches_kept,
    ),
    Mutant(
        name="old-deadlines",
        bug="M38",
        what="one that leads again goes by the deadlines of its earlier leadership",
        history="A leads, loses its leadership and gets it back: all sessions that were touched "
        "elsewhere meanwhile are expired at once",
        reference="ClickHouse Keeper pull request 121361",
        level="core",
        found_by=frozenset({"S4"}),
        patches=_old_deadlines,
        shape=_LEADERS_CHANGE,
    ),
    Mutant(
        name="session-replaced",
        bug="M39",
        what="a client whose session is over is silently given a new one",
        history="a client comes back after its session has expired, and goes on as if it still "
        "had its ephemerals",
        reference="ClickHouse Keeper issue 116690",
        level="core",
        found_by=frozenset({"S5"}),
        patches=_session_replaced,
        shape={"kinds": ("stall", "partition", "pause")},
    ),
    Mutant(
        name="owner-ignored",
        bug="M40",
        what="the leader takes writes of a session from a member that it has left",
        history="write 5 is slow between B and the leader; its client moves to C and writes 6; "
        "then 5 arrives and undoes it",
        reference="the family of ZOOKEEPER-2886",
        level="core",
        found_by=frozenset({"S6"}),
        patches=_owner_ignored,
        shape={"kinds": ("stall", "slow path"), "voters": 3},
    ),
    Mutant(
        name="last-seen-ignored",
        bug="M41",
        what="a member does not compare what a client has seen with where it stands itself",
        history="a client reads 1.9 at A, comes to C, which stands at 1.5, and sees the past",
        reference="ZooKeeper's refusal of a session that is ahead; clients that do not send it",
        level="core",
        found_by=frozenset({"C4"}),
        patches=_last_seen_ignored,
    ),
    Mutant(
        name="dirty-read",
        bug="M42",
        what="the leader's own clients read what is proposed and not committed",
        history="7.4 is seen at the leader, which crashes; 7.4 is cut off, and was never there",
        reference="classical",
        level="core",
        found_by=frozenset({"C5"}),
        patches=_dirty_read,
    ),
    Mutant(
        name="sync-is-local",
        bug="M46",
        what="a member answers a sync by itself",
        history="a follower that is cut off answers at once, and the read after it is old",
        reference="classical",
        level="core",
        found_by=frozenset({"C6"}),
        patches=_sync_is_local,
        without=frozenset({"C1"}),  # whose judges see it as well, at the end
    ),
    Mutant(
        name="sync-unconfirmed",
        bug="M46",
        what="a leader that has not noticed that it leads no more answers a sync without asking",
        history="a leader is cut off and has not noticed; the others elect and commit; it answers "
        "a sync, and the read after it is old",
        reference="ZooKeeper's plain sync",
        level="core",
        found_by=frozenset({"C6"}),
        patches=_sync_unconfirmed,
        without=frozenset({"C1", "C8", "L4"}),  # they see it too, or that it goes on too long
        shape={
            "kinds": ("isolate the leader",),
            "voters": 3,
            "observers": 0,
            "sync_limit": 2,
            "init_limit": 10,
            "faults_ms": 20_000,
            "tick_ms": 200,
            "fault_every_ms": 2_000,
        },
    ),
    Mutant(
        name="read-overtakes-write",
        bug="M47",
        what="a read is done when it comes, not when the writes before it are",
        history="a client writes and reads in one packet, and does not find what it wrote",
        reference="the role of ZooKeeper's commit processor",
        level="core",
        found_by=frozenset({"C3"}),
        patches=_read_overtakes,
    ),
    Mutant(
        name="write-overtakes-sync",
        bug="M47",
        what="a write is handed on while a sync before it is not answered",
        history="sync, read, write in one packet: the read waits for the sync, and sees the write",
        reference="found here, when the rule C2 of connections was made",
        level="core",
        found_by=frozenset({"C2"}),
        patches=_write_overtakes_sync,
    ),
    Mutant(
        name="create-after-close",
        bug="M48",
        what="a session whose close is prepared is not marked as closing",
        history="close and create race in the leader's pipeline; the ephemeral stays for ever",
        reference="ZOOKEEPER-1208",
        level="core",
        found_by=frozenset({"S3"}),
        patches=_create_after_close,
    ),
    Mutant(
        name="sessions-forgotten",
        bug="M49",
        what="a new leader knows no deadline of the sessions that were there before it",
        history="all restart; a client is gone, and its session never ends",
        reference="ZOOKEEPER-1367; ZOOKEEPER-2355, ZOOKEEPER-1496",
        level="core",
        found_by=frozenset({"S8"}),
        patches=_sessions_forgotten,
        shape={"kinds": ("kill", "abdicate"), "voters": 3, "observers": 0},
    ),
    Mutant(
        name="wall-clock",
        bug="M59",
        what="sessions are expired by the wall clock",
        history="the leader's clock is set forward by an hour, and every session is over",
        reference="classical",
        level="core",
        found_by=frozenset({"S4"}),
        patches=_wall_clock,
        shape={"kinds": ("clock step",)},
        without=frozenset({"C1"}),  # whose judges see what became of it
    ),
    Mutant(
        name="ephemeral-left",
        bug="M69",
        what="the close of a session leaves its ephemerals behind",
        history="which ephemerals go is not written into the close; one restored from a snapshot "
        "removes others",
        reference="ZOOKEEPER-3145",
        level="core",
        found_by=frozenset({"S2"}),
        patches=_ephemeral_left,
    ),
    Mutant(
        name="refused-at-home",
        bug="M90",
        what="a member refuses a create by itself, because its own tree has the znode already",
        history="the znode was deleted before, which this member has not applied yet: a client "
        "that knows of the delete is told that the znode is there",
        reference="classical",
        level="core",
        found_by=frozenset({"C1"}),
        patches=_refused_at_home,
        without=frozenset({"C2"}),  # which sees it if the client's own writes are newer
    ),
    Mutant(
        name="forwarded-again",
        bug="M104",
        what="a follower hands on again to a new leader what the one before had not answered",
        history="the old leader had committed it and died before it said so: it happens twice",
        reference="classical",
        level="core",
        found_by=frozenset({"C7"}),
        patches=_forwarded_again,
        shape=_LEADERS_CHANGE,
        without=frozenset({"C2"}),  # the second time may come behind what was asked later
    ),
    Mutant(
        name="serves-on",
        bug="M105",
        what="a leader that hears nothing of the others goes on serving",
        history="a leader is cut off, the others elect and commit; it answers reads for hours",
        reference="classical",
        level="core",
        found_by=frozenset({"C8"}),
        patches=_serves_on,
        without=frozenset({"C1", "L4"}),  # which see it without looking at what it answers
        shape={
            "kinds": ("isolate the leader",),
            "voters": 3,
            "observers": 0,
            "sync_limit": 2,
            "init_limit": 10,
        },
    ),
    Mutant(
        name="password-ignored",
        bug="M106",
        what="a session is given to whoever names its id",
        history="an id is guessed, and somebody else's ephemerals are one's own",
        reference="classical",
        level="core",
        found_by=frozenset({"S7"}),
        patches=_password_ignored,
    ),
    Mutant(
        name="below-ephemerals",
        bug="M94",
        what="a znode may be created below an ephemeral",
        history="the session ends, and what was below its ephemeral hangs in the air",
        reference="classical",
        level="core",
        found_by=frozenset({"S1"}),
        patches=_below_ephemerals,
    ),
    *WATCHING,
)
