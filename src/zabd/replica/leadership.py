"""What a member does only while it leads: number, prepare, expire, confirm.

A `Leadership` is made when the member's peer is established as leader and thrown away when it
stops leading, so nothing it knew (outstanding changes, owners, deadlines) can outlive the epoch.

Invariants
    L1  Intents are prepared in the order they were gathered, each against the tree and every
        change still uncommitted; the outcome is fixed in the txn.
    L2  A write of a session is taken only from the member through which the session was last
        opened; any other is refused and its connection cut.
    L3  A sync is answered only after a quorum confirmed this leadership since the sync came in,
        and after everything proposed before it was delivered here.
    L4  A client hears that its session is gone only once the close is committed: one that is still
        in flight may yet be lost with this leader, and then the session lives on.
    L5  The time in a batch never goes back, whatever the wall clock does.
    L6  A batch is closed by the bytes of its txns, not of the requests for them, and the last one
        fits as well, so that whatever was prepared can be proposed.
    L7  A batch that made the members count many znodes for quotas is the last one until it is in
        the tree here: between two of them everybody does what else there is to do.

Source: client protocol, sections 3, 9 (leader time), 10, 14 and 15.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zabd.model.errors import ErrorCode, MarshallingError, UnimplementedError
from zabd.model.ops import CreateSession, DeleteContainer, OpCode
from zabd.model.paths import CONFIG_PATH
from zabd.model.zxid import Zxid
from zabd.replica import messages
from zabd.replica.config import BATCH_BYTES_MAX, BATCH_OPS_MAX, ReplicaConfig
from zabd.replica.gathering import Gathering
from zabd.replica.local_sessions import is_local
from zabd.replica.messages import Answer, AnswerKind, Intent
from zabd.replica.perishables import Perishables
from zabd.replica.session_tracker import SessionTracker
from zabd.wire.requests import decode_op
from zabd.wire.short_writes import split_create, split_set_data
from zabd.znode_tree import txns
from zabd.znode_tree.prepare import PrepareOptions, Preparer
from zabd.znode_tree.quota_check import WALK_MAX, Trace

if TYPE_CHECKING:
    import random

    from zabd.model.ids import MemberId, SessionId
    from zabd.znode_tree.tree import ZnodeTree
    from zabd.znode_tree.txns import Txn

EXPIRIES_PER_TURN_MAX = 200
"""Sessions closed in one turn: a storm of expiries shares the log with everyone's writes. The next
ones come with the next turn, once these are proposed."""

SECRET_BITS = 256

_GROWING_OPCODES = frozenset(
    (
        OpCode.CREATE,
        OpCode.CREATE2,
        OpCode.CREATE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.SET_DATA,
        OpCode.SET_ACL,  # 64 KiB of ids
        OpCode.MULTI,
    )
)

_CREATE_SESSION = int(OpCode.CREATE_SESSION)
_SET_DATA = int(OpCode.SET_DATA)
_SHORT_OPCODES = frozenset((_SET_DATA, int(OpCode.CREATE), int(OpCode.CREATE2)))
"""Those of which nearly all can be prepared without an op."""

_GROWN_KINDS = frozenset((txns.CREATE, txns.SET_ACL, txns.MULTI, txns.CLOSE_SESSION))
"""Txns that may be larger than what was asked: they name what a session owns, or who it is."""

_WITHOUT_OP = frozenset((OpCode.SYNC, OpCode.CLOSE_SESSION, OpCode.DELETE_CONTAINER))
"""What is prepared without a look at the request's body, or is the leader's own."""


@dataclass(slots=True)
class _SyncRound:
    """Syncs that one quorum round confirms together."""

    token: int
    after: Zxid
    waiting: list[tuple[MemberId, messages.RequestId]]
    confirmed: bool = False


class Leadership:
    """The leader's half of the replica; see the module's invariants."""

    def __init__(
        self,
        config: ReplicaConfig,
        tree: ZnodeTree,
        rng: random.Random,
        wall_ms: int,
        now_ms: int,
        trace: Trace = lambda _event, _fields: None,
    ) -> None:
        self._me = config.ensemble.me
        self._tree = tree
        self._rng = rng
        self._time_base_ms = max(wall_ms, tree.time_ms) - now_ms
        self._preparer = Preparer(tree, _prepare_options(config), trace)
        self.tracker = SessionTracker(config.ensemble.tick_ms, now_ms)
        for session_id in sorted(tree.sessions):
            self.tracker.track(session_id, tree.sessions[session_id], None, now_ms)
        self._perishables = Perishables(config, tree, now_ms)
        self.gathering = Gathering()
        self._gathered: deque[Intent] = deque()
        self._answers: dict[MemberId, list[Answer]] = {}
        self._syncs_asked: list[tuple[MemberId, messages.RequestId]] = []
        self._sync_rounds: deque[_SyncRound] = deque()
        self._sync_token = 0
        self._closing: list[tuple[SessionId, MemberId, messages.RequestId]] = []  # who waits (L4)
        self._config_text = config.config_text.encode()
        # Also when the configuration has changed: /zookeeper/config shows the present one.
        self._must_found = not tree.secret or tree.nodes[CONFIG_PATH].data != self._config_text
        self._last_proposed = Zxid(tree.zxid)
        self._expiring_ms: int | None = None  # as of when there are more to close
        self.space_low = False
        self._counting = False  # see L7
        self.since_ms = now_ms
        self.last_time_ms = tree.time_ms

    @property
    def gathered(self) -> int:
        """Intents that wait for the next batch."""
        return len(self._gathered)

    @property
    def wants_batch(self) -> bool:
        """Whether there is something to be prepared."""
        return not self._counting and (bool(self._gathered) or self._must_found)

    @property
    def has_answers(self) -> bool:
        """Whether there are answers outside the log to be handed out."""
        return bool(self._answers)

    def gather(self, intents: tuple[Intent, ...] | list[Intent]) -> None:
        """Take intents into the line, in their order (L1)."""
        self._gathered.extend(intents)

    def forget_origin(self, origin: MemberId) -> None:
        """A member's link broke: what it forwarded but was not prepared yet is void.

        Its clients were all cut, so each of them knows that it does not know.
        """
        self._gathered = deque(i for i in self._gathered if i.origin != origin)
        self._answers.pop(origin, None)
        self._closing = [waiter for waiter in self._closing if waiter[1] != origin]

    def expire(self, now_ms: int) -> None:
        """Close the sessions and delete the znodes whose time is over, a bounded number a turn."""
        self._expire_sessions(now_ms)
        for path in self._perishables.due(now_ms, self._time_base_ms + now_ms):
            self._gather_own(0, OpCode.DELETE_CONTAINER, path.encode())

    @property
    def expires_more(self) -> bool:
        """Whether more sessions were due than a turn closes, and the log has taken those of it."""
        return self._expiring_ms is not None and not self._gathered

    def expire_more(self) -> None:
        """Go on with the sessions that were due at the last `expire`.

        Those that have become due since may have been heard of, which is told with the next one.
        """
        if self._expiring_ms is not None and not self._gathered:
            self._expire_sessions(self._expiring_ms)

    def _expire_sessions(self, now_ms: int) -> None:
        due = self.tracker.due(now_ms, EXPIRIES_PER_TURN_MAX)
        self._expiring_ms = now_ms if len(due) == EXPIRIES_PER_TURN_MAX else None
        for session_id in due:
            self._gather_own(session_id, OpCode.CLOSE_SESSION, b"")

    def _gather_own(self, session_id: SessionId, opcode: OpCode, frame: bytes) -> None:
        intent = Intent(self._me, messages.NOBODY_WAITS, session_id, opcode, frame, ())
        self._gathered.append(intent)

    def next_batch(self, first: Zxid, now_ms: int) -> tuple[int, bytes] | None:
        """Prepare what was gathered: how many txns, and the batch's payload; None if no txn.

        `first` is the zxid of the first of them. Intents that end outside the log are answered
        on the way.
        """
        time_ms = self.last_time_ms = max(self.last_time_ms, self._time_base_ms + now_ms)
        entries: list[tuple[MemberId, messages.RequestId, SessionId, Txn]] = []
        if self._must_found:
            self._must_found = False
            secret = self._tree.secret or self._draw_secret()
            entries.append(
                (self._me, messages.NOBODY_WAITS, 0, txns.found(secret, self._config_text))
            )
        size_bytes = 0
        gathered, owners = self._gathered, self.tracker.owners
        walked_max = self._preparer.walked + WALK_MAX
        while gathered and len(entries) < BATCH_OPS_MAX and size_bytes < BATCH_BYTES_MAX:
            intent = gathered.popleft()
            origin, request_id, session_id, opcode, frame, _ = intent
            zxid = first + len(entries)
            txn = None
            if opcode in _SHORT_OPCODES and owners.get(session_id) == origin:
                txn = self._prepare_shortly(intent, zxid, time_ms)
            if txn is None:
                txn = self._prepare(intent, zxid, time_ms, now_ms)
                self._counting = self._preparer.walked > walked_max
                if txn is None:
                    continue
                if txn[0] in _GROWN_KINDS:
                    size_bytes += max(0, txns.packed_size(txn) - len(frame))
            if not session_id and opcode == _CREATE_SESSION:
                session_id = zxid
            entries.append((origin, request_id, session_id, txn))
            size_bytes += len(frame)
            if self._counting:
                break
        if not entries:
            return None
        self._last_proposed = Zxid(first + len(entries) - 1)
        return len(entries), txns.pack_batch(time_ms, entries)

    def _draw_secret(self) -> bytes:
        return self._rng.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")

    def delivered(self, zxid: Zxid) -> None:
        """Everything up to `zxid` is in the tree."""
        self._preparer.applied(zxid)
        self._counting = self._counting and zxid < self._last_proposed
        self._release_syncs()
        if self._closing:
            waiting, self._closing = self._closing, []
            for session_id, origin, request_id in waiting:
                self._say_gone(session_id, origin, request_id)

    def ask_confirmation(self) -> int | None:
        """The token of a quorum round for the syncs taken since the last one; None if no sync."""
        if not self._syncs_asked:
            return None
        self._sync_token += 1
        self._sync_rounds.append(
            _SyncRound(self._sync_token, self._last_proposed, self._syncs_asked)
        )
        self._syncs_asked = []
        return self._sync_token

    def confirmed(self, token: int) -> None:
        """A quorum confirmed this leadership after round `token` was asked for."""
        for sync_round in self._sync_rounds:
            if sync_round.token <= token:
                sync_round.confirmed = True
        self._release_syncs()

    def take_answers(self) -> dict[MemberId, list[Answer]]:
        """Answers outside the log, by member, since the last call."""
        answers, self._answers = self._answers, {}
        return answers

    def _release_syncs(self) -> None:
        while self._sync_rounds:
            sync_round = self._sync_rounds[0]
            if not sync_round.confirmed or sync_round.after > self._tree.zxid:
                return  # L3
            self._sync_rounds.popleft()
            for origin, request_id in sync_round.waiting:
                self._answer(origin, Answer(AnswerKind.SYNCED, request_id, sync_round.after))

    def _answer(self, origin: MemberId, answer: Answer) -> None:
        self._answers.setdefault(origin, []).append(answer)

    def _prepare(self, intent: Intent, zxid: int, time_ms: int, now_ms: int) -> Txn | None:
        origin, request_id, session_id, opcode, frame, identities = intent
        if opcode == _CREATE_SESSION or opcode == messages.VALIDATE:  # noqa: PLR1714 (twice as fast)
            return self._prepare_session(intent, zxid, time_ms, now_ms)
        known, owner = self.tracker.find(session_id)
        if known and owner != origin and request_id != messages.NOBODY_WAITS:
            self._answer(origin, Answer(AnswerKind.REFUSED, request_id, 0))  # L2
            return None
        if opcode in _WITHOUT_OP:
            return self._prepare_without_op(intent, zxid, time_ms)
        if self.space_low and opcode in _GROWING_OPCODES:
            return txns.error(ErrorCode.QUOTA_EXCEEDED)
        try:
            op = decode_op(opcode, frame)
        except MarshallingError:
            return txns.error(ErrorCode.MARSHALLING_ERROR)
        except UnimplementedError:
            return txns.error(ErrorCode.UNIMPLEMENTED)
        local = session_id == messages.NO_SESSION
        return self._preparer.prepare(
            zxid, time_ms, session_id, identities, op, local_session=local
        )

    def _prepare_shortly(self, intent: Intent, zxid: int, time_ms: int) -> Txn | None:
        """The txn of a setData or create of its session's owner, if it is as nearly all are.

        Neither an op nor an object for the request is made on the way. None is for `_prepare`.
        """
        if self.space_low:
            return None
        _, _, session_id, opcode, frame, identities = intent
        if opcode == _SET_DATA:
            change = split_set_data(frame)
            prepare = self._preparer.prepare_set_data
        else:
            change = split_create(frame)
            prepare = self._preparer.prepare_create
        return None if change is None else prepare(zxid, time_ms, session_id, identities, change)

    def _prepare_session(self, intent: Intent, zxid: int, time_ms: int, now_ms: int) -> Txn | None:
        if intent.opcode == messages.VALIDATE:
            self._validate(intent, now_ms)
            return None
        timeout_ms = int.from_bytes(intent.frame, "big")
        session_id = intent.session_id or zxid  # a local session becomes global under its id
        self.tracker.track(session_id, timeout_ms, intent.origin, now_ms)
        # The preparer has to know: with a slow disk here a follower applies the creation before
        # we do, and its client's first write may come before our tree has the session.
        return self._preparer.prepare(zxid, time_ms, session_id, (), CreateSession(timeout_ms))

    def _prepare_without_op(self, intent: Intent, zxid: int, time_ms: int) -> Txn | None:
        if intent.opcode == OpCode.SYNC:
            self._syncs_asked.append((intent.origin, intent.request_id))
            return None
        if intent.opcode == OpCode.CLOSE_SESSION:
            self.tracker.forget(intent.session_id)
            return self._preparer.close_session(zxid, time_ms, intent.session_id)
        op = DeleteContainer(intent.frame.decode())
        return self._preparer.prepare(zxid, time_ms, 0, (), op)

    def _validate(self, intent: Intent, now_ms: int) -> None:
        session_id = intent.session_id
        # Its creation may be in flight still: a follower may have applied it before we have.
        if session_id not in self.tracker or not self._preparer.session_is_live(session_id):
            self._say_gone(session_id, intent.origin, intent.request_id)
            return
        timeout_ms = int.from_bytes(intent.frame, "big")
        self.tracker.track(session_id, timeout_ms, intent.origin, now_ms)
        self._answer(intent.origin, Answer(AnswerKind.ALIVE, intent.request_id, timeout_ms))

    def _say_gone(
        self, session_id: SessionId, origin: MemberId, request_id: messages.RequestId
    ) -> None:
        # A session's id is the zxid that created it: the creation may be in flight as well.
        if session_id in self._tree.sessions or self._tree.zxid < session_id <= self._last_proposed:
            self._closing.append((session_id, origin, request_id))  # L4
        elif session_id > self._last_proposed and not is_local(session_id):
            # A later leader has opened it: it is not for this one to say what became of it.
            self._answer(origin, Answer(AnswerKind.REFUSED, request_id, 0))
        else:
            self._answer(origin, Answer(AnswerKind.GONE, request_id, 0))


def _prepare_options(config: ReplicaConfig) -> PrepareOptions:
    return PrepareOptions(
        ttl_enabled=config.ttl_enabled,
        skip_acl=config.skip_acl,
        enforce_quota=config.enforce_quota,
        sasl=config.sasl_users is not None,
    )
