"""The generator: from a seed to a script.

A script uses few paths, versions and identities, so that its requests meet: what one creates the
next sets, watches, guards and deletes. About one request in eight is wrong in some way.

Never sent, for the reference takes harm: a check outside a multi that may hold (13),
deleteContainer (20), createSession (-10), createTTL with the flags of another kind (21), and
createContainer with the flags of another kind (19).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tests.compat.differential import script as s
from tests.compat.differential.differences import counts_of

from zabd.model import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    Acl,
    AddWatch,
    Auth,
    Check,
    CheckWatches,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateTtl,
    Delete,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    MultiRead,
    Op,
    OpCode,
    Ping,
    Reconfig,
    RemoveWatches,
    Sasl,
    SetAcl,
    SetData,
    SetWatches,
    SetWatches2,
    Sync,
    WhoAmI,
    make_digest_id,
)
from zabd.model.ops import WRITE_OPCODES
from zabd.wire.opcodes import REQUESTS

T = TypeVar("T")

REQUESTS_PER_SCRIPT: Final = 100
CONNECTIONS_MAX: Final = 4
_REQUEST_BYTES_MAX: Final = 1_048_575
USERS: Final = ("alice:a", "bob:b")

_ROOT: Final = s.ROOT
_PATHS: Final = (
    *[f"{_ROOT}/{name}" for name in "aaabbc"],
    *[f"{_ROOT}/{name}" for name in ("a/x", "a/x", "a/y", "b/x")],
    f"{_ROOT}/a/x/deep",
    f"{_ROOT}/s-",
    f"{_ROOT}/s-0000000000",
)
_RARE_PATHS: Final = (
    f"{_ROOT}/b/y",
    f"{_ROOT}/c/x",
    f"{_ROOT}/a/s-0000000000",
    f"{_ROOT}/s-0000000001",
    f"{_ROOT}/0000000002",
    f"{_ROOT}-beside",
    f"{_ROOT}-beside-",
    f"{_ROOT}/{'long' * 100}",
)
_QUOTA_ON: Final = f"{_ROOT}/q"
_QUOTA: Final = f"/zookeeper/quota{_QUOTA_ON}"
_COUNTED_PATHS: Final = (
    *[f"{_QUOTA_ON}/{name}" for name in ("a", "b", "c", "a/x", "a/y", "s-")],
    _QUOTA_ON,
)
_LIMITS: Final = (
    b"count=3,bytes=10",
    b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=4",
    b"count=-1,bytes=-1=;byteHardLimit=9;countHardLimit=-1",
    b"count=2,bytes=2=;byteHardLimit=300;countHardLimit=6",
    b"count=-1,bytes=-1=;byteHardLimit=5000;countHardLimit=5",
)
_BAD_PATHS: Final = (
    "",
    "/",
    "//",
    "zz",
    "zz/yy",
    f"{_ROOT}/",
    f"{_ROOT}//a",
    f"{_ROOT}/a/",
    f"{_ROOT}/.",
    f"{_ROOT}/..",
    f"{_ROOT}/a/../b",
    f"{_ROOT}/a/./x",
    f"{_ROOT}/a\0b",
    f"{_ROOT}/\1",
    f"{_ROOT}/\x1f",
    f"{_ROOT}/\x7f",
    f"{_ROOT}/\x9f",
    f"{_ROOT}/\ue000",
    f"{_ROOT}/\uf8ff",
    f"{_ROOT}/\uf900",
    f"{_ROOT}/\ufff0",
    f"{_ROOT}/\uffff",
    f"{_ROOT}/\xe9\u4e2d",
    f"{_ROOT}/...",
    f"{_ROOT}/ ",
    "/zookeeper",
    "/zookeeper/quota",
    "/zookeeper/nothing",
    f"{_ROOT}/none/child",
    f"{_ROOT}/none/child/grandchild",
)
_ACLS: Final = (
    READ_ACL_UNSAFE,
    CREATOR_ALL_ACL,
    CREATOR_ALL_ACL + READ_ACL_UNSAFE,
    (Acl(31, "digest", make_digest_id(*USERS[0].split(":"))),),
    (Acl(31, "digest", make_digest_id(*USERS[1].split(":"))), Acl(1, "world", "anyone")),
    (Acl(31, "ip", "127.0.0.1"),),
    (Acl(31, "ip", "127.0.0.0/8"), Acl(1, "world", "anyone")),
    (Acl(31, "ip", "10.0.0.1"), Acl(3, "world", "anyone")),
    *[(Acl(perms, "world", "anyone"),) for perms in (0, 1, 2, 3, 4, 8, 13, 16, 17, 30, 64, 95, -1)],
    (*OPEN_ACL_UNSAFE, *OPEN_ACL_UNSAFE),
    (*READ_ACL_UNSAFE, *OPEN_ACL_UNSAFE, *READ_ACL_UNSAFE),
)
_BAD_ACLS: Final = (
    None,
    (),
    (Acl(31, "world", "someone"),),
    (Acl(31, "world", ""),),
    (Acl(31, "nobody", "x"),),
    (Acl(31, "", ""),),
    (Acl(31, "super", ""),),
    (Acl(31, "sasl", "x"),),
    (Acl(31, "digest", "alice"),),
    (Acl(31, "digest", "alice:"),),
    (Acl(31, "digest", ":x"),),
    (Acl(31, "digest", "a:b:c"),),
    (Acl(31, "ip", "localhost"),),
    (Acl(31, "ip", "127.0.0.1/33"),),
    (Acl(31, "ip", "127.0.0.1/-1"),),
    (Acl(31, "ip", "1.2.3"),),
    (*OPEN_ACL_UNSAFE, Acl(1, "nobody", "x")),
    (Acl(31, "auth", "anything"), *OPEN_ACL_UNSAFE),
    (Acl(31, "digest", "\xe9:\u4e2d"),),
)
_AUTHS: Final = (
    *[Auth(0, "digest", user.encode()) for user in USERS for _ in range(4)],
    Auth(7, "digest", b"alice:a"),
    Auth(0, "digest", b"nocolon"),
    Auth(0, "digest", b""),
    Auth(0, "digest", b"a:b:c"),
    Auth(0, "digest", b"super:secret"),
    Auth(0, "digest", b"super:wrong"),
    Auth(0, "digest", b"\xff\xfe:x"),
    Auth(0, "ip", b""),
    Auth(0, "ip", b"10.0.0.1"),
    Auth(0, "world", b"anyone"),
    Auth(0, "nobody", b"x"),
    Auth(0, "sasl", b"x"),
    Auth(0, "super", b""),
    Auth(0, "", b""),
)
_DATA: Final = (b"", b"x", b"data", None, bytes(range(256)), b"y" * 5000)
_TTLS: Final = (1_000_000_000, (1 << 40) - 1, 1_000_000)
_BAD_TTLS: Final = (0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1)
_UNKNOWN_OPCODES: Final = (0, -1, 10, 23, 99, 108, 1000, -100, 2**31 - 1, -(2**31))


class Generator:
    """Makes one script; the same seed makes the same one everywhere."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._steps: list[s.Step] = []
        self._open: list[str] = []
        self._all: list[str] = []
        self._modes: dict[tuple[str, str], str] = {}
        self._left = REQUESTS_PER_SCRIPT
        self._uses_acls = self._chance(0.5)
        self._uses_raw = self._chance(0.5)
        self._has_quota = self._chance(0.2)
        self._had_quota = self._has_quota

    def script(self) -> s.Script:
        """The script."""
        self._connect_new()
        if self._open:
            self._furnish(self._open[0])
            if self._has_quota:
                self._set_quota(self._open[0])
        while self._left > 0:
            self._step()
        if self._has_quota and self._open:
            self._add(s.Send(self._open[0], (GetData(f"{_QUOTA}/zookeeper_stats", False),)))
        return tuple(self._steps)

    # ---- steps -----------------------------------------------------------------------------

    def _step(self) -> None:
        draw = self._rng.random()
        if not self._open or (draw < 0.06 and len(self._open) < CONNECTIONS_MAX):
            self._connect_new()
        elif draw < 0.10:
            self._connect_again()
        elif draw < 0.115:
            self._close()
        elif draw < 0.13:
            self._hang_up(self._pick(self._open))
        elif draw < 0.135:
            self._garbage()
        elif draw < 0.14:
            self._add(s.Dial(self._name(), self._pick(_BAD_GREETINGS)))
        elif draw < 0.17:
            self._authenticate()
        elif draw < 0.175:
            self._unknown()
        elif draw < 0.18:
            name = self._pick(self._open)  # alone, for the reference answers ahead of the others
            self._add(s.Send(name, (Sasl(self._pick((b"", b"token"))),)))
        else:
            self._send()

    def _furnish(self, name: str) -> None:
        """Something to meet: a script of nothing but -101 says little."""
        names = [each for each in ("a", "a/x", "b", "c") if self._chance(0.7)]
        creates = [Create(f"{_ROOT}/{each}", b"", self._acl(), 0) for each in names]
        if creates:
            self._add(s.Send(name, tuple(creates)))

    def _set_quota(self, name: str) -> None:
        """As clients do: first what may be, then what is.

        The limits are never lowered: see `quota-in-flight` and `quota-shrink`.
        """
        nodes = {
            _QUOTA_ON: b"",
            f"/zookeeper/quota{_ROOT}": b"",
            _QUOTA: b"",
            f"{_QUOTA}/zookeeper_limits": self._pick(_LIMITS),
            f"{_QUOTA}/zookeeper_stats": b"count=0,bytes=0",
        }
        for path, data in nodes.items():
            self._add(s.Send(name, (Create(path, data, OPEN_ACL_UNSAFE, 0),)))

    def _drop_quota(self, name: str) -> None:
        """Once and for all: see `quota-in-flight`."""
        self._has_quota = False
        for kind in ("limits", "stats"):
            self._add(s.Send(name, (Delete(f"{_QUOTA}/zookeeper_{kind}", -1),)))

    def _add(self, step: s.Step) -> None:
        self._steps.append(step)
        self._left -= s.count_requests((step,))

    def _name(self) -> str:
        name = f"c{len(self._all) + 1}"
        self._all.append(name)
        return name

    def _connect_new(self) -> None:
        name = self._name()
        future = self._chance(0.02)
        connect = s.Connect(
            name,
            password=self._pick((None, None, b"", b"short", b"x" * 40)),
            timeout_ms=self._pick((10_000, 10_000, 0, -1, 4_000, 5_000, 40_000, 2**31 - 1)),
            last_zxid=s.FUTURE if future else 0,
            read_only=self._pick((False, False, True, None)),
            requests=() if self._chance(0.8) else self._requests(name, 3),
        )
        self._add(connect)
        if not future:
            self._open.append(name)

    def _connect_again(self) -> None:
        """Resume a session, whether it is open, broken or closed, with its password or another."""
        old, name = self._pick(self._all), self._name()
        right = self._chance(0.75)
        future = self._chance(0.03)
        requests = self._requests(name, 3) if self._chance(0.2) else ()
        self._add(
            s.Connect(
                name,
                resume=old,
                password=None if right else self._pick((b"", b"x", bytes(16), b"\1" * 16)),
                timeout_ms=self._pick((10_000, 4_000, 0, 60_000)),
                last_zxid=self._pick((0, s.LAST_SEEN)) if not future else s.FUTURE,
                read_only=self._pick((False, False, True, None)),
                requests=requests if right and not future else (),
            )
        )
        # Which connections of that session are open depends on the answers: use none of them.
        self._sessions = getattr(self, "_sessions", {})
        self._sessions[name] = self._sessions.get(old, old)
        same = self._sessions[name]
        self._open = [o for o in self._open if self._sessions.get(o, o) != same]
        if right and not future:
            self._open.append(name)

    def _close(self) -> None:
        name = self._pick(self._open)
        before = self._requests(name, 3) if self._chance(0.3) else ()
        if any(map(self._leaves_much_in_flight, before)):
            before = ()
        behind = (Exists(self._path(), False),) if self._chance(0.2) else ()
        close = CloseSession() if self._chance(0.9) else s.Raw(OpCode.CLOSE_SESSION, b"more")
        self._add(s.Send(name, (*before, close, *behind)))
        self._open.remove(name)

    def _hang_up(self, name: str) -> None:
        self._add(s.HangUp(name))
        self._open.remove(name)

    def _garbage(self) -> None:
        name = self._pick(self._open)
        garbage = (
            b"\0\x10\0\0\0\0\0\x07\0\0\0\x04",
            b"\xff\xff\xff\xff",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\0",
            b"\0\0\0\4abcd",
        )
        self._add(s.Garbage(name, self._pick((*garbage, b"ruok", b"\0\0\0\7" + bytes(7)))))
        self._open.remove(name)

    def _authenticate(self) -> None:
        name = self._pick(self._open)
        auth = self._pick(_AUTHS)
        request: s.Request = auth if self._chance(0.9) else s.Xid(self._pick((0, 5, -9)), auth)
        self._add(s.Send(name, (request,)))
        if auth.scheme not in ("digest", "ip"):
            self._open.remove(name)

    def _unknown(self) -> None:
        name = self._pick(self._open)
        body = self._pick((b"", b"\0\0\0\1/", self._rng.randbytes(20)))
        unknown = s.Raw(self._pick(_UNKNOWN_OPCODES), body)
        self._add(s.Send(name, (unknown,)))
        self._open.remove(name)

    def _send(self) -> None:
        name = self._pick(self._open)
        if self._has_quota and self._chance(0.01):
            self._drop_quota(name)
        elif self._chance(0.002):
            # The longest request there may be; what is behind its record does not count.
            body = REQUESTS[OpCode.EXISTS].write(Exists(_ROOT, False))
            longest = s.Raw(OpCode.EXISTS, body.ljust(_REQUEST_BYTES_MAX - 8, b"\0"))
            self._add(s.Send(name, (longest,)))
        self._add(s.Send(name, self._requests(name, 1 if self._chance(0.5) else 6)))

    # ---- requests --------------------------------------------------------------------------

    def _requests(self, name: str, count_max: int) -> tuple[s.Request, ...]:
        count = self._rng.randint(1, count_max)
        requests: list[s.Request] = []
        in_flight = False
        for _ in range(count):
            request = self._request(name)
            if not (in_flight and s.opcode_of(request) in WRITE_OPCODES):
                requests.append(request)
                in_flight = in_flight or self._leaves_much_in_flight(request)
        return tuple(requests)

    def _request(self, name: str) -> s.Request:
        op = self._op(name)
        if self._uses_raw and self._chance(0.08) and op.opcode not in _NEVER_BENT:
            return self._raw(op)
        if self._chance(0.02):
            return s.Xid(self._pick((0, 1, 7, -3, -9, 2**31 - 1, -(2**31))), op)
        return op

    def _leaves_much_in_flight(self, request: s.Request) -> bool:
        """See `acl-in-flight`, `multi-in-flight` and `quota-in-flight`."""
        opcode = s.opcode_of(request)
        if self._has_quota:
            return opcode in WRITE_OPCODES
        return opcode in (OpCode.SET_ACL, OpCode.MULTI)

    def _op(self, name: str) -> Op:
        makers: tuple[tuple[int, Callable[[str], Op]], ...] = (
            (20, self._create),
            (9, lambda _: Delete(self._path(), self._version())),
            (12, lambda _: SetData(self._path(), self._pick(_DATA), self._version())),
            (4, lambda _: self._set_acl()),
            (8, self._multi),
            (8, lambda name: self._read(name, Exists)),
            (8, lambda name: self._read(name, GetData)),
            (5, lambda name: self._read(name, GetChildren)),
            (5, lambda name: self._read(name, GetChildren2)),
            (3, lambda _: GetAcl(self._path())),
            (2, lambda _: GetAllChildrenNumber(self._path())),
            (2, lambda _: GetEphemerals(self._prefix())),
            (4, self._multi_read),
            (2, lambda _: Sync(self._pick((None, "", "zz", self._path())))),
            (2, lambda _: Ping()),
            (2, lambda _: WhoAmI()),
            (1, lambda _: Reconfig(*self._pick(_RECONFIGS))),
            (1, lambda _: Check(f"{_ROOT}/never", self._version())),
            (3, self._add_watch),
            (3, self._set_watches),
            (2, lambda name: self._about_watches(name, CheckWatches)),
            (3, lambda name: self._about_watches(name, RemoveWatches)),
        )
        weights = [weight for weight, _ in makers]
        [(_, make)] = self._rng.choices(makers, weights)
        return make(name)

    def _set_acl(self) -> Op:
        path = self._path()
        return SetAcl(path, self._acl(path), self._version())

    def _create(self, _name: str) -> Op:
        path, data = self._path(), self._pick(_DATA)
        acl = self._acl(path)
        draw = self._rng.random()
        flags = self._pick((0, 0, 0, 1, 1, 2, 2, 3))
        if draw < 0.03:
            kind = self._pick((Create, Create2))
            return kind(path, data, acl, self._pick((4, 4, 5, 6, 7, -1, 100, 2**31 - 1)))
        if draw < 0.10:
            return CreateContainer(path, data, acl, 4)
        if draw < 0.17:
            ttl = self._pick(_TTLS if self._chance(0.8) else _BAD_TTLS)
            return CreateTtl(path, data, acl, self._pick((5, 6)), ttl)
        return self._pick((Create, Create2))(path, data, acl, flags)

    def _multi(self, name: str) -> Op:
        makers: tuple[Callable[[str], Any], ...] = (
            self._create,
            self._create,
            lambda _: Delete(self._path(), self._version()),
            lambda _: SetData(self._path(), self._pick(_DATA), self._version()),
            lambda _: Check(self._path(), self._version()),
        )
        parts = 1 if self._has_quota else 5
        return Multi(tuple([self._pick(makers)(name) for _ in range(self._rng.randint(0, parts))]))

    def _multi_read(self, _name: str) -> Op:
        kinds = (GetData, GetChildren)
        count = self._rng.randint(0, 4)
        return MultiRead(
            tuple([self._pick(kinds)(self._path(), self._chance(0.2)) for _ in range(count)])
        )

    def _read(self, name: str, kind: Callable[[str, bool], Op]) -> Op:
        path = self._path() if self._chance(0.99) else "/zookeeper/config"
        if self._had_quota and self._chance(0.2):
            path = f"{_QUOTA}/zookeeper_stats"
        return kind(path, self._chance(0.5) and self._may_watch(name, path, "standard"))

    def _add_watch(self, name: str) -> Op:
        path = self._path()
        mode = self._pick((0, 1) if self._chance(0.9) else (2, -1, 100))
        if mode in (0, 1) and not self._may_watch(name, path, ("persistent", "recursive")[mode]):
            mode = 2
        return AddWatch(path, mode)

    def _set_watches(self, name: str) -> Op:
        def some(mode: str) -> tuple[str, ...]:
            paths = [self._path() for _ in range(self._rng.randint(0, 3))]
            return tuple([path for path in paths if self._may_watch(name, path, mode)])

        zxid = self._pick((0, s.LAST_SEEN, s.LAST_SEEN - 5, s.LAST_SEEN - 20, s.FUTURE, -1))
        lists = (some("standard"), some("standard"), some("standard"))
        if self._chance(0.6):
            return SetWatches(zxid, *lists)
        return SetWatches2(zxid, *lists, some("persistent"), some("recursive"))

    def _about_watches(self, name: str, kind: Callable[[str, int], Op]) -> Op:
        watched = [path for who, path in self._modes if who == name]
        path = self._pick(watched) if watched and self._chance(0.7) else self._path()
        return kind(path, self._pick((1, 2, 3) if self._chance(0.9) else (0, 4, 5, 6, -1, 99)))

    def _may_watch(self, name: str, path: str, mode: str) -> bool:
        """Keep to one mode for a path of a connection, mostly: see `watch-modes`."""
        return self._modes.setdefault((name, path), mode) == mode or self._chance(0.02)

    def _raw(self, op: Op) -> s.Raw:
        """The request with something wrong in its bytes."""
        if self._chance(0.15) and op.opcode in _WITH_LISTS:
            return s.Raw(op.opcode, self._pick(_ODD_LISTS[op.opcode]))
        body = REQUESTS[op.opcode].write(op)
        # Cut short or longer, or with other letters, a request cannot say what must not be sent.
        draw = self._rng.randrange(3 if op.opcode in _HARMFUL_WHEN_BENT else 6)
        at = self._rng.randrange(len(body) + 1)
        sets_watches = op.opcode in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2)
        if sets_watches and draw > 2:
            draw, at = 4, max(at, 8)  # a zxid of one server is none of the other's
        match draw:
            case 0:
                body = body[:at]
            case 1:
                body += self._rng.randbytes(self._rng.randint(1, 9))
            case 2:
                body = self._other_letters(body)
            case 3:
                body = self._pick(_LENGTHS) + body[4:]
            case 4:
                body = body[: at & ~3] + self._pick(_LENGTHS) + body[(at & ~3) + 4 :]
            case _:
                body = self._rng.randbytes(self._rng.randint(0, 30))
        raw = s.Raw(op.opcode, body)
        if sets_watches and any(count < 0 for count in counts_of(raw)):
            # Lists that cannot be are in `_ODD_LISTS`: here the events for those before them would
            # differ as well.
            return s.Raw(op.opcode, REQUESTS[op.opcode].write(op))
        return raw

    def _other_letters(self, body: bytes) -> bytes:
        """What is no UTF-8 in place of some of the first string, which is a path mostly."""
        size = int.from_bytes(body[:4], "big", signed=True)
        letters = self._pick(_NO_UTF8)
        if size <= len(s.ROOT) + len(letters) or size > len(body) - 4:
            return body
        at = self._rng.randint(4 + len(s.ROOT), 4 + size - len(letters))
        return body[:at] + letters + body[at + len(letters) :]

    # ---- arguments -------------------------------------------------------------------------

    def _path(self) -> str:
        if self._had_quota and self._chance(0.5):
            return self._pick(_COUNTED_PATHS)
        draw = self._rng.random()
        if draw < 0.08:
            return self._pick(_BAD_PATHS)
        if draw < 0.13:
            return _ROOT
        return self._pick(_RARE_PATHS if draw < 0.2 else _PATHS)

    def _prefix(self) -> str | None:
        return self._pick((None, "", " ", "/", _ROOT, f"{_ROOT}/a", f"{_ROOT}/a/", "/none", "x"))

    def _version(self) -> int:
        return self._pick((-1, -1, -1, -1, 0, 0, 1, 2, -2, 2**31 - 1))

    def _acl(self, path: str = _ROOT) -> tuple[Acl, ...] | None:
        if not self._uses_acls or self._chance(0.6) or not path.startswith(_ROOT):
            return OPEN_ACL_UNSAFE  # what all scripts share stays open to all
        return self._pick(_ACLS if self._chance(0.8) else _BAD_ACLS)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, values: Any) -> Any:
        return self._rng.choice(values)


_LENGTHS: Final = tuple(
    number.to_bytes(4, "big", signed=True)
    for number in (-1, -2, -100, 0, 1, 2, 7, 1000, 2**20, 2**24, 2**31 - 1, -(2**31))
)
# Other bytes in these could say what must not be sent; cut short or longer they cannot.
_HARMFUL_WHEN_BENT: Final = frozenset(
    (
        OpCode.CREATE,
        OpCode.CREATE2,
        OpCode.CREATE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.MULTI,
        OpCode.CHECK,
    )
)
_NO_UTF8: Final = (b"\xff", b"\x80", b"\xc0\x80", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80")
_ACL_ENTRY: Final = REQUESTS[OpCode.SET_ACL].write(SetAcl("", OPEN_ACL_UNSAFE, 0))[8:-4]


def _odd_lists(opcode: int) -> tuple[bytes, ...]:
    """Requests whose lists are null, or have a count that is none of theirs."""
    path = b"\0\0\0\x08" + f"{_ROOT}/a".encode()
    counts = [n.to_bytes(4, "big", signed=True) for n in (-1, -2, -100, -(2**31), 2, 2**31 - 1)]
    end = bytes(4)
    if opcode == OpCode.SET_ACL:
        return (*[path + n + end for n in counts], *[path + n + _ACL_ENTRY + end for n in counts])
    if opcode in (OpCode.CREATE, OpCode.CREATE2):
        return tuple([path + b"\0\0\0\0" + n + end for n in counts])
    lists = 3 if opcode == OpCode.SET_WATCHES else 5
    return (
        *[bytes(8) + n * lists for n in counts],
        *[bytes(8) + n + bytes(4) * (lists - 1) for n in counts],
        *[bytes(8) + bytes(4) * (lists - 1) + n for n in counts],
    )


_WITH_LISTS: Final = frozenset(
    (OpCode.SET_ACL, OpCode.CREATE, OpCode.CREATE2, OpCode.SET_WATCHES, OpCode.SET_WATCHES2)
)
_ODD_LISTS: Final = {opcode: _odd_lists(opcode) for opcode in sorted(_WITH_LISTS)}
_BAD_GREETINGS: Final = (
    b"\0\0\0\0",
    b"\0\0\0\x08" + bytes(8),
    b"\0\0\0\x1b" + bytes(27),
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    # A handshake whose password has a size that cannot be.
    *[b"\0\0\0\x1d" + bytes(24) + size + b"\0" for size in (b"\x7f\0\0\0", b"\xff\xff\xff\xfe")],
)
# A check must not hold; of a bent reconfig and auth see `undecodable`.
_NEVER_BENT: Final = frozenset((OpCode.CHECK, OpCode.RECONFIG))
_RECONFIGS: Final = (
    (None, None, None, -1),
    ("server.2=127.0.0.1:1:2:participant;3", None, None, -1),
    (None, "1", None, 0),
    (None, None, "server.1=127.0.0.1:1:2:participant;3", 7),
)


def generate(seed: int, number: int) -> s.Script:
    """The script of that number in the run of that seed."""
    return Generator(f"{seed}/{number}").script()
