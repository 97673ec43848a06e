"""The checks of sessions that need more than one member's word: who was heard, who asked for what.

`SessionChecks` reads the ledger as it grows, and is told by the simulated members and clients what
nobody else can know: when a member heard a client, and what of that its leader has learnt since.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from zabd.model.ids import LinkId, MemberId, SessionId, format_session
from zabd.model.zxid import Zxid
from zabd.znode_tree import txns
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.znode import is_session

US_PER_MS: Final = 1_000

HEARD_SLACK_TICKS: Final = 1.2
"""A member says how long ago it heard a session by its own clock, in whole milliseconds: half a
tick at most, of a clock that may be twice as fast."""

TIMELY_SLACK_TICKS: Final = 4
"""How much older than syncLimit and a half of it a read may be. The half is what a member waits for
its own disk (S12), before which it applies nothing; what the leader said last may have been under
way for three ticks (a slow path); and a member looks at its clock every half tick."""

_DATA: Final = frozenset((txns.CREATE, txns.SET_DATA))


class Issued:
    """A write that a client has asked for, known by its data, which no other write has."""

    __slots__ = ("client", "connection", "serial", "zxid")

    def __init__(self, client: str, connection: int, serial: int) -> None:
        self.client = client
        self.connection = connection  # the client's n-th
        self.serial = serial  # its place in the client's own order
        self.zxid = 0  # where it took effect


class Heard(NamedTuple):
    """When a member last heard a session, and on which link it would tell its leader."""

    life: object
    link: LinkId | None
    at_us: int


class LeaderView(Protocol):
    """What is asked of a leader that is about to expire sessions."""

    @property
    def life(self) -> object:
        """Its process."""

    @property
    def rate(self) -> float:
        """How fast its clock runs at most."""

    @property
    def ticked_us(self) -> int:
        """When it last took its own clients' touches."""

    @property
    def led_ms(self) -> int:
        """For how long it has led, by its clock."""

    def learnt_us(self, link: LinkId) -> int | None:
        """Up to when it knows whom the member on that link has heard."""


class SessionChecks:
    """S1, S4, S6, S7, C2, C4, C7, C8 and W7 of one ensemble; `fail` is told what does not hold."""

    def __init__(
        self, tree: ZnodeTree, fail: Callable[[str, str], None], tick_ms: int, sync_limit: int
    ) -> None:
        self._fail = fail
        self.issued: dict[bytes, Issued] = {}
        self.heard: dict[SessionId, dict[MemberId, Heard]] = {}
        self.committed_us: list[int] = []  # of each batch of the ledger
        self._tree = tree
        self._tick_ms = tick_ms
        self._sync_limit = sync_limit
        self._created: set[SessionId] = set()
        self._latest: dict[SessionId, tuple[Issued, int]] = {}

    # --- the ledger ------------------------------------------------------------------------------

    def committed(self, session_id: SessionId, txn: txns.Txn, zxid: int) -> None:
        """A transaction enters the ledger; the tree stands right before it."""
        kind = txn[0]
        if kind in _DATA:
            self._wrote(session_id, txn, zxid)
        elif kind == txns.MULTI:
            for part in txn[2]:
                if part[0] in _DATA:
                    self._wrote(session_id, part, zxid)
        elif kind == txns.CREATE_SESSION:
            self._require_new(session_id, zxid)

    def _require_new(self, session_id: SessionId, zxid: int) -> None:
        """No id is given twice, over members and epochs (S7)."""
        if session_id in self._created:
            self._fail("S7", f"{Zxid(zxid)!r} gives the id {format_session(session_id)} once more")
        self._created.add(session_id)

    def _wrote(self, session_id: SessionId, txn: txns.Txn, zxid: int) -> None:
        if txn[0] == txns.CREATE:
            self._require_owner(txn, zxid)
        issued = self.issued.get(txn[2])
        if issued is None:
            return
        if issued.zxid not in {0, zxid}:
            self._fail(
                "C7",
                f"what {issued.client} asked for once took effect at {Zxid(issued.zxid)!r} and "
                f"at {Zxid(zxid)!r}",
            )
        issued.zxid = zxid
        latest = self._latest.get(session_id)
        if latest is not None:
            self._require_turn(issued, *latest, zxid)
        self._latest[session_id] = (issued, zxid)

    def _require_turn(self, issued: Issued, before: Issued, before_zxid: int, zxid: int) -> None:
        if issued.connection < before.connection:
            self._fail(
                "S6",
                f"{issued.client} wrote at {Zxid(zxid)!r} over a connection that it had left when "
                f"it wrote at {Zxid(before_zxid)!r}",
            )
        if issued.serial < before.serial and zxid != before_zxid:
            self._fail(
                "C2", f"{issued.client} asked first for {Zxid(zxid)!r}, then {Zxid(before_zxid)!r}"
            )

    def _require_owner(self, txn: txns.Txn, zxid: int) -> None:
        """An ephemeral begins with an open session, and nothing begins below one (S1)."""
        path, owner = txn[1], txn[4]
        if owner and is_session(owner) and owner not in self._tree.sessions:
            self._fail(
                "S1", f"{Zxid(zxid)!r} creates {path} of {format_session(owner)}, which is not open"
            )
        parent = self._tree.nodes.get(path[: path.rindex("/")])
        if parent is not None and parent.owner and is_session(parent.owner):
            self._fail("S1", f"{Zxid(zxid)!r} creates {path} below an ephemeral")

    # --- who was heard ---------------------------------------------------------------------------

    def hears(self, member: MemberId, session_id: SessionId, heard: Heard) -> None:
        """A member has bytes of a session's client."""
        by_member = self.heard.get(session_id)
        if by_member is None:
            by_member = self.heard[session_id] = {}
        by_member[member] = heard

    def expiring(self, leader: LeaderView, session_id: SessionId, now_us: int) -> None:
        """A leader is about to close a session of which it thinks that nobody has heard (S4)."""
        timeout_ms = self._tree.sessions.get(session_id)
        if timeout_ms is None:
            return
        least_ms = timeout_ms - HEARD_SLACK_TICKS * self._tick_ms
        name = format_session(session_id)
        if leader.led_ms < least_ms:
            self._fail(
                "S4", f"{leader.life} expires {name} after it has led for {leader.led_ms} ms"
            )
        for member, (life, link, at_us) in self.heard.get(session_id, {}).items():
            silent_ms = (now_us - at_us) * leader.rate / US_PER_MS
            if silent_ms < least_ms and _knows(leader, life, link, at_us, now_us):
                self._fail(
                    "S4",
                    f"{leader.life} expires {name} of {timeout_ms} ms, whose client member "
                    f"{member} heard {silent_ms:.0f} ms ago",
                )

    # --- how old an answer is --------------------------------------------------------------------

    def is_fresh(self, position: int, now_us: int) -> bool:
        """Whether nothing behind `position` was committed longer ago than a slow clock's bound."""
        if position >= len(self.committed_us):
            return True
        age_ms = (now_us - self.committed_us[position]) / US_PER_MS
        return age_ms <= self._sync_limit * self._tick_ms

    def require_timely(self, who: object, position: int, now_us: int, rate: float = 1.0) -> None:
        """A member answers from a state that ends at `position` in the ledger (C8)."""
        if position >= len(self.committed_us):
            return
        age_ms = (now_us - self.committed_us[position]) * rate / US_PER_MS
        bound_ms = (1.5 * self._sync_limit + TIMELY_SLACK_TICKS) * self._tick_ms
        if age_ms > bound_ms:
            self._fail(
                "C8", f"{who} answers from a state {age_ms:.0f} ms old, {bound_ms:.0f} are allowed"
            )

    def admitted(self, who: object, seen_zxid: int, zxid: int) -> None:
        """A member has taken a client that has seen `seen_zxid`, and stands at `zxid` (C4)."""
        if seen_zxid > zxid:
            self._fail(
                "C4",
                f"{who} stands at {Zxid(zxid)!r} and takes a client that saw {Zxid(seen_zxid)!r}",
            )

    def require_no_ghosts(self, who: object, closed: Sequence[object]) -> None:
        """Connections that are over have left nothing in a watch table (W7)."""
        if closed:
            self._fail("W7", f"{who} keeps watches of {len(closed)} connections that ended")


def _knows(leader: LeaderView, life: object, link: LinkId | None, at_us: int, now_us: int) -> bool:
    if life is leader.life:
        return at_us < now_us
    learnt_us = leader.learnt_us(link) if link is not None else None
    return learnt_us is not None and at_us < learnt_us
