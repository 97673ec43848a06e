"""The checks of locks and of `dedup` trip on what they are there for, and let pass what is near."""

import json

import pytest
from tests.cluster_sim.test_replica_checks import World, trips

from zabd.cluster_sim.recipe_checks import RecipeChecks
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import OpCode
from zabd.znode_tree import txns

KEY, LOCK = "/dedup/key", "/dedup/key/lock-000000000"
FIRST, SECOND, THIRD = 77, 78, 79


class Queue:
    """A key that three sessions contend for, and whoever watches what."""

    def __init__(self) -> None:
        self.world = World()
        self.watching: dict[str, list[int]] = {}
        checker = self.world.checker
        checker.recipes = RecipeChecks(checker.tree, checker.fail, self.watchers)
        for session in (FIRST, SECOND, THIRD):
            self.world.deliver(txns.create_session(4_000), session=session)
        self.count = 0
        self.world.deliver(make("/dedup", b""), make(KEY, b""))
        self.tokens = [self.join(session) for session in (FIRST, SECOND, THIRD)]

    def watchers(self, path: str) -> list[int]:
        return self.watching.get(path, [])

    def join(self, session: int, *, owner: int | None = None, number: int | None = None) -> int:
        """A session takes a place; its token."""
        owner = session if owner is None else owner
        number = self.count if number is None else number
        self.count += 1
        path = f"{LOCK}{number}"
        return int(self.world.deliver(make(path, b"", owner, self.count), session=session))

    def do(self, session: int, *parts: txns.Txn) -> None:
        """One multi; its creates are counted, as preparing them would do."""
        created = self.world.checker.tree.nodes[KEY].created
        counted = []
        for part in parts:
            if part[0] == txns.CREATE:
                created += 1
                part = (*part[:5], created)  # noqa: PLW2901 - the same part, counted
            counted.append(part)
        parts = tuple(counted)
        opcodes = {txns.CREATE: OpCode.CREATE, txns.DELETE: OpCode.DELETE}
        codes = [int(opcodes.get(part[0], OpCode.SET_DATA)) for part in parts]
        self.world.deliver(txns.multi(codes, parts), session=session)

    def begin(self, session: int, **fields: object) -> None:
        """Write a journal."""
        there = self.world.checker.tree.get(f"{KEY}/started")
        data = record(**fields)
        if there is None:
            self.do(session, make(f"{KEY}/started", data))
        else:
            self.do(session, txns.set_data(f"{KEY}/started", data, there.version + 1))

    def commit(self, session: int, number: int, **fields: object) -> None:
        """End the journal, record, and give the place back."""
        result = make(f"{KEY}/result", record(**fields))
        self.do(session, txns.delete(f"{KEY}/started"), result, txns.delete(f"{LOCK}{number}"))


def make(path: str, data: bytes, owner: int = 0, count: int = 1) -> txns.Txn:
    """A create."""
    return txns.create(path, data, OPEN_ACL_UNSAFE, owner, count)


def record(**fields: object) -> bytes:
    """A journal or an outcome."""
    told = {
        "attempt": 1,
        "attempt_id": "one",
        "payload_hash": "h",
        "alg": "sha256",
        "status": "COMPLETED",
        "fencing_token": 0,
        "lock": "lock-0000000000",
        "value": 1,
    }
    return json.dumps({**told, **fields}).encode()


@pytest.fixture
def queue() -> Queue:
    """Three places, nothing begun."""
    return Queue()


def test_only_the_owner_begins(queue: Queue) -> None:
    """P1."""
    queue.begin(FIRST)
    with trips("P1"):
        Queue().begin(SECOND)


def test_only_the_owner_records_and_once(queue: Queue) -> None:
    """P2: by another session, by another znode's token, and a second time."""
    queue.begin(FIRST)
    with trips("P2"):
        queue.commit(SECOND, 1, fencing_token=queue.tokens[1])
    queue = Queue()
    queue.begin(FIRST)
    with trips("P2"):
        queue.commit(FIRST, 0, fencing_token=queue.tokens[0] - 1)
    queue = Queue()
    queue.begin(FIRST)
    queue.commit(FIRST, 0, fencing_token=queue.tokens[0])
    queue.world.deliver(txns.delete(f"{KEY}/result"), session=SECOND)
    with trips("P2"):
        queue.do(SECOND, make(f"{KEY}/result", record(fencing_token=queue.tokens[1])))


def test_what_is_recorded_is_not_begun_again(queue: Queue) -> None:
    """P3; who only gives its place back does what it should."""
    queue.begin(FIRST)
    queue.commit(FIRST, 0, fencing_token=queue.tokens[0])
    queue.world.deliver(txns.delete(f"{LOCK}1"), session=SECOND)
    with trips("P3"):
        queue.begin(THIRD, attempt_id="three")


def test_an_attempt_in_doubt_binds_the_next_one(queue: Queue) -> None:
    """P4 and P6: the same payload, the next number; its own journal an attempt may rewrite."""
    queue.begin(FIRST)
    queue.begin(FIRST)
    queue.world.deliver(txns.close_session((f"{LOCK}0",)), session=FIRST)
    queue.begin(SECOND, attempt=2, attempt_id="two")
    for check, fields in (("P4", {"payload_hash": "other"}), ("P6", {"attempt": 1})):
        other = Queue()
        other.begin(FIRST)
        other.world.deliver(txns.close_session((f"{LOCK}0",)), session=FIRST)
        with trips(check):
            other.begin(SECOND, **{"attempt": 2, "attempt_id": "two", **fields})


def test_the_journal_of_an_attempt_in_doubt_is_not_thrown_away(queue: Queue) -> None:
    """P6; its own an attempt may end, when nothing has happened."""
    queue.begin(FIRST)
    queue.do(FIRST, txns.delete(f"{KEY}/started"), txns.delete(f"{LOCK}0"))
    queue = Queue()
    queue.begin(FIRST)
    queue.world.deliver(txns.close_session((f"{LOCK}0",)), session=FIRST)
    with trips("P6"):
        queue.do(SECOND, txns.delete(f"{KEY}/started"), txns.delete(f"{LOCK}1"))


def test_nothing_stands_in_a_queue_without_a_session(queue: Queue) -> None:
    """P5."""
    with trips("P5"):
        queue.join(FIRST, owner=0)


def test_a_session_has_one_place(queue: Queue) -> None:
    """P8; it may come back when the first one is gone."""
    queue.world.deliver(txns.delete(f"{LOCK}0"), session=FIRST)
    queue.join(FIRST)
    with trips("P8"):
        queue.join(SECOND)


def test_only_the_next_one_is_woken(queue: Queue) -> None:
    """P7; who stood here before may have a watch left from then (a legal near miss)."""
    queue.watching[f"{LOCK}0"] = [SECOND]
    queue.world.deliver(txns.delete(f"{LOCK}0"), session=FIRST)
    queue = Queue()
    queue.watching[f"{LOCK}0"] = [SECOND, THIRD]
    with trips("P7"):
        queue.world.deliver(txns.delete(f"{LOCK}0"), session=FIRST)
    queue = Queue()
    queue.world.deliver(txns.delete(f"{LOCK}2"), session=THIRD)
    queue.join(THIRD)
    queue.watching[f"{LOCK}0"] = [SECOND, THIRD]
    queue.world.deliver(txns.delete(f"{LOCK}0"), session=FIRST)


def test_who_acts_as_a_holder_has_been_at_the_front(queue: Queue) -> None:
    """C9; also when it is not there any more, which it may not know yet."""
    recipes = queue.world.checker.recipes
    assert recipes is not None
    queue.world.deliver(txns.delete(f"{LOCK}0"), session=FIRST)
    recipes.require_front("first", queue.tokens[0])
    recipes.require_front("second", queue.tokens[1])
    with trips("C9"):
        recipes.require_front("third", queue.tokens[2])
