"""The intended differences between zabd and ZooKeeper 3.8.0: few, named, each with its reason.

A rule explains exactly what it says and nothing around it. Four more differences need no rule: the
player (`unknown-op`, `password-first`) and the comparison (order of children, of ephemerals, of the
ids that `auth` stands for, and of what comes behind a close) see to them; the generator never sends
what would hurt the reference (`harmful`). They are listed here all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.compat.differential import script as s
from tests.compat.differential.answers import Answer

from zabd.model import (
    Acl,
    AddWatch,
    AddWatchMode,
    CheckWatches,
    Create,
    Create2,
    Create2Result,
    CreateContainer,
    CreateResult,
    CreateTtl,
    ErrorCode,
    ErrorResult,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    Multi,
    MultiRead,
    MultiResult,
    OpCode,
    Perms,
    RemoveWatches,
    SetAcl,
    SetWatches,
    SetWatches2,
    Sync,
    SyncResult,
)
from zabd.model.paths import CONFIG_PATH

_READS = (Exists, GetData, GetAcl, GetChildren, GetChildren2, GetAllChildrenNumber)
_WITH_ACL = (Create, Create2, CreateContainer, CreateTtl, SetAcl)
_DIGITS = 10


@dataclass
class Knowledge:
    """What a script has asked for so far, as far as the rules want to know."""

    guarded: set[str] = field(default_factory=set)
    """Paths that at some time may have had an ACL without READ for everybody."""
    modes: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Of connection and path: the modes of watches that were asked for."""
    spoilt: set[tuple[str, str]] = field(default_factory=set)
    """Connection and path where the two servers do not have the same watches any more."""
    only_left_logs_checks: bool = True
    """Whether the reference is one that uses up a zxid for a check outside a multi."""
    aliases: dict[int, int] = field(default_factory=dict)
    """zxids that only the reference used up, and the ones before."""

    def learn(self, step: s.Step) -> None:
        """The step is about to be compared."""
        for request in s.requests_of(step):
            op = s.meaning_of(request)
            for part in op.ops if isinstance(op, Multi) else (op,):
                if isinstance(part, _WITH_ACL) and not _all_may_read(part.acl):
                    self.guarded.add(part.path)
            for mode, path in _watches(op):
                modes = self.modes.setdefault((step.name, path), set())
                modes.add(mode)
                if len(modes) > 1:
                    self.spoilt.add((step.name, path))

    def is_guarded(self, path: str) -> bool:
        """Whether READ may be missing on the path, or on one that it is a sequential name of."""
        return path in self.guarded or path[:-_DIGITS] in self.guarded

    def is_spoilt(self, name: str, path: str) -> bool:
        """Whether events for the path on that connection say nothing."""
        if (name, path) in self.spoilt:
            return True
        return any(
            who == name
            and "recursive" in self.modes.get((who, where), ())
            and (where == "/" or path.startswith(where + "/"))
            for who, where in self.spoilt
        )

    def alias(self, zxid: int) -> int:
        """The moment that a zxid of the reference stands for."""
        while zxid in self.aliases:
            zxid = self.aliases[zxid]
        return zxid

    def moment_of(self, case: Case) -> int:
        """The zxid of the reference's answer; the one before if it was for `check-alone`."""
        assert case.left is not None
        zxid = case.left.zxid
        if self.only_left_logs_checks and case.opcode == OpCode.CHECK and zxid > 0:
            self.aliases[zxid] = zxid - 1
        return self.alias(zxid)


@dataclass(frozen=True)
class Case:
    """One request with both answers."""

    name: str
    op: Any
    left: Answer | None
    right: Answer | None
    knowledge: Knowledge
    request: Any = None
    """As it stands in the script; `op` is what it means."""
    unlike: tuple[str, ...] = ()
    """Where the answers differ."""

    @property
    def opcode(self) -> int | None:
        """Of the request, if it is an answer to one."""
        return self.op.opcode if self.op is not None else None

    @property
    def errors(self) -> tuple[int, int]:
        """Both codes."""
        assert self.left is not None
        assert self.right is not None
        return self.left.error, self.right.error


@dataclass
class Events:
    """The events of one connection between two answers; rules bring both sides together."""

    name: str
    left: list[tuple[Any, Any, Any]]
    right: list[tuple[Any, Any, Any]]
    unordered: bool
    knowledge: Knowledge


class Intended(NamedTuple):
    """One difference that is meant to be."""

    name: str
    reason: str
    answers: Callable[[Case], bool] | None = None
    events: Callable[[Events], bool] | None = None


# ---- answers -------------------------------------------------------------------------------


def _empty_path(case: Case) -> bool:
    if isinstance(case.op, MultiRead):
        return _only_parts(case, lambda read, _, mine: read.path == "" and _refused(mine))
    if isinstance(case.op, CheckWatches | RemoveWatches):
        return case.op.path == "" and ErrorCode.NO_WATCHER in case.errors
    return isinstance(case.op, _READS) and case.op.path == "" and case.errors[1] == -8


def _refused(part: Any) -> bool:
    return isinstance(part, ErrorResult) and part.code == ErrorCode.BAD_ARGUMENTS


def _exists_reads(case: Case) -> bool:
    if not isinstance(case.op, Exists) or case.errors != (0, ErrorCode.NO_AUTH):
        return False
    if not case.knowledge.is_guarded(case.op.path):
        return False
    if case.op.watch:
        case.knowledge.spoilt.add((case.name, case.op.path))
    return True


def _multi_create2(case: Case) -> bool:
    return isinstance(case.op, Multi) and _only_parts(case, _of_other_type)


def _of_other_type(op: Any, left: Any, right: Any) -> bool:
    """Results of creates in a multi, of which one has a Stat and the other has not."""
    if isinstance(left, CreateResult) and isinstance(right, Create2Result):
        return isinstance(op, Create2) and left.path == right.path
    if isinstance(left, Create2Result) and isinstance(right, CreateResult):
        return isinstance(op, Create) and op.flags == 4 and left.path == right.path
    return False


def _only_parts(case: Case, applies: Callable[[Any, Any, Any], bool]) -> bool:
    """Whether results differ in nothing but parts of other types, each as the rule says."""
    assert case.left is not None
    assert case.right is not None
    if not all(where.startswith("part:") and "/" in where for where in case.unlike):
        return False
    left, right = case.left.result, case.right.result
    assert isinstance(left, MultiResult)
    assert isinstance(right, MultiResult)
    parts = zip(case.op.ops, left.results, right.results, strict=True)
    return all(applies(*part) for part in parts if type(part[1]) is not type(part[2]))


def _multi_ttl_flags(case: Case) -> bool:
    if not isinstance(case.op, Multi) or case.errors != (ErrorCode.MARSHALLING_ERROR, 0):
        return False
    return any(isinstance(op, Create | Create2) and op.flags in (5, 6) for op in case.op.ops)


def _config_version(case: Case) -> bool:
    parts = case.op.ops if isinstance(case.op, MultiRead) else (case.op,)
    about = any(getattr(part, "path", "") == CONFIG_PATH for part in parts)
    return about and all(each.endswith("Stat.version (0 and -1)") for each in case.unlike)


def _watch_modes(case: Case) -> bool:
    op = case.op
    if not isinstance(op, CheckWatches | RemoveWatches):
        return False
    modes = case.knowledge.modes.get((case.name, op.path), set())
    spoilt = (case.name, op.path) in case.knowledge.spoilt
    if not spoilt and op.type not in (4, 5) and not modes & {"persistent", "recursive"}:
        return False
    allowed = (0, ErrorCode.NO_WATCHER, ErrorCode.MARSHALLING_ERROR)
    if isinstance(op, RemoveWatches):
        case.knowledge.spoilt.add((case.name, op.path))
    return case.errors[0] in allowed and case.errors[1] in allowed


def _check_of_others(case: Case) -> bool:
    """The reference takes a watch of any connection for the caller's own."""
    if isinstance(case.op, CheckWatches) and not case.op.path.startswith("/"):
        return case.errors[0] == ErrorCode.MARSHALLING_ERROR
    if not isinstance(case.op, CheckWatches) or case.errors != (0, ErrorCode.NO_WATCHER):
        return False
    if not case.op.path.startswith(s.ROOT):
        return True  # scripts share it, and the reference may keep watches of connections long gone
    return any(path == case.op.path and who != case.name for who, path in case.knowledge.modes)


def _null_lists(case: Case) -> bool:
    null = isinstance(case.request, s.Raw) and b"\xff\xff\xff\xff" in case.request.body
    if not null or case.errors != (ErrorCode.MARSHALLING_ERROR, 0):
        return False
    paths = [(case.name, path) for _, path in _watches(case.op)]
    case.knowledge.spoilt.update(paths)
    return isinstance(case.op, SetWatches | SetWatches2)


def _negative_counts(case: Case) -> bool:
    if not isinstance(case.op, s.Raw) or case.errors[1] != ErrorCode.MARSHALLING_ERROR:
        return False
    counts = list(counts_of(case.op))
    return case.errors[0] != ErrorCode.MARSHALLING_ERROR and any(count < -1 for count in counts)


def counts_of(raw: s.Raw) -> Iterator[int]:
    """The counts of the lists in a request, read in the reference's way."""
    lists = _LISTS.get(raw.opcode)
    if lists is None:
        return
    at, strings, count = lists
    for _ in range(strings):
        at += 4 + max(_int_at(raw.body, at), 0)
    for _ in range(count):
        items = _int_at(raw.body, at)
        yield items
        at += 4
        while items > 0 and at < len(raw.body):
            at += 4 + max(_int_at(raw.body, at), 0)
            items -= 1


# Of an opcode: where the strings before its lists begin, how many they are, and how many lists of
# strings there are. Of an ACL nothing but the count is needed.
_LISTS = {
    OpCode.CREATE: (0, 2, 1),
    OpCode.CREATE2: (0, 2, 1),
    OpCode.SET_ACL: (0, 1, 1),
    OpCode.SET_WATCHES: (8, 0, 3),
    OpCode.SET_WATCHES2: (8, 0, 5),
}


def _int_at(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 4], "big", signed=True)


def _null_path(case: Case) -> bool:
    if not isinstance(case.op, s.Raw) or _int_at(case.op.body, 0) != -1:
        return False
    return case.errors == (_OF_NULL_PATH.get(case.op.opcode), ErrorCode.MARSHALLING_ERROR)


_OF_NULL_PATH = {
    OpCode.SET_DATA: ErrorCode.BAD_ARGUMENTS,
    OpCode.SET_ACL: ErrorCode.BAD_ARGUMENTS,
    OpCode.ADD_WATCH: ErrorCode.OK,
    OpCode.REMOVE_WATCHES: ErrorCode.NO_WATCHER,
}


def _text_kept(case: Case) -> bool:
    result = case.right.result if case.right else None
    return (
        isinstance(case.op, Sync)
        and isinstance(result, SyncResult)
        and (case.unlike == ("SyncResult.path",) and result.path == case.op.path)
    )


# ---- events --------------------------------------------------------------------------------


def _of_empty_path(events: Events) -> bool:
    before = len(events.left) + len(events.right)
    events.left = [event for event in events.left if event[2]]
    events.right = [event for event in events.right if event[2]]
    return len(events.left) + len(events.right) < before


def _spoilt_watches(events: Events) -> bool:
    def keep(side: list[tuple[Any, Any, Any]]) -> list[tuple[Any, Any, Any]]:
        return [each for each in side if not events.knowledge.is_spoilt(events.name, each[2])]

    before = len(events.left) + len(events.right)
    events.left, events.right = keep(events.left), keep(events.right)
    return len(events.left) + len(events.right) < before


def _order_of_ephemerals(events: Events) -> bool:
    if not events.unordered:
        return False
    events.left.sort(key=repr)
    events.right.sort(key=repr)
    return True


def _filtered(events: Events) -> bool:
    """Take out what the reference alone tells about guarded paths."""
    surplus = Counter(events.left) - Counter(events.right)
    kept = []
    for event in events.left:
        if surplus[event] and events.knowledge.is_guarded(event[2]):
            surplus[event] -= 1
        else:
            kept.append(event)
    changed = len(kept) < len(events.left)
    events.left = kept
    return changed


INTENDED: tuple[Intended, ...] = (
    Intended(
        "empty-path",
        "reads refuse the empty path, which the reference takes for the root (section 8)",
        answers=_empty_path,
        events=_of_empty_path,
    ),
    Intended(
        "exists-needs-read",
        "exists needs READ, as it does since 3.9.2 (sections 11 and 25)",
        answers=_exists_reads,
    ),
    Intended(
        "multi-create2",
        "create2 in a multi is answered with its Stat, as since 3.9.0; create with the flags of "
        "a container without one, for it makes a persistent znode (sections 9, 12 and 25)",
        answers=_multi_create2,
    ),
    Intended(
        "multi-ttl-flags",
        "flags of a TTL node under create in a multi are bad arguments of that op (section 9); "
        "the reference fails the whole request as undecodable",
        answers=_multi_ttl_flags,
    ),
    Intended(
        "config-version",
        "/zookeeper/config has the version -1 (section 17), as the reference gives it in ensembles",
        answers=_config_version,
    ),
    Intended(
        "watch-modes",
        "modes of watches on one path are independent and removed one by one, as since 3.9.0; "
        "types 4 and 5 exist (sections 13 and 25)",
        answers=_watch_modes,
        events=_spoilt_watches,
    ),
    Intended(
        "check-of-others",
        "checkWatches looks at the caller's own watches (section 13); 3.8.0 looks at those of "
        "every connection, and stumbles over a path without a slash if any watch is recursive",
        answers=_check_of_others,
    ),
    Intended(
        "null-lists",
        "null lists of setWatches are empty ones (section 1)",
        answers=_null_lists,
    ),
    Intended(
        "negative-counts",
        "a list with a count below -1 cannot be decoded (section 1); the reference finds it empty",
        answers=_negative_counts,
    ),
    Intended(
        "null-path",
        "a null path cannot be decoded (section 20); the reference finds out later in setData and "
        "setACL, and never in addWatch and removeWatches",
        answers=_null_path,
    ),
    Intended(
        "text-kept",
        "what is no UTF-8 comes back from sync byte by byte if it can (section 1)",
        answers=_text_kept,
    ),
    Intended(
        "order-of-ephemerals",
        "the ephemerals of a session that ends are deleted in no particular order",
        events=_order_of_ephemerals,
    ),
    Intended(
        "event-acl",
        "events are for those who may read the znode, as since 3.9.2 (sections 13 and 25)",
        events=_filtered,
    ),
)

WITHOUT_RULE = {
    "event-zxid": "an event carries its transaction's zxid, not -1 (section 13); not compared",
    "ping-order": "pings may overtake on either server (section 3); they are counted",
    "check-alone": "a check outside a multi is answered from the tree and uses up no zxid "
    "(section 4); the reference never answers one that holds, so none is sent that may",
    "unknown-op": "an unknown type does not cost the connection (section 20); the player hangs up",
    "password-first": "a wrong password does not disconnect the rightful client (section 2); "
    "the player hangs up on it",
    "behind-close": "what is pipelined behind a close may be lost with the connection",
    "null-token": "a null SASL token is answered (section 11), where the reference hangs up; "
    "not sent",
    "ipv6": "an ACL may name IPv6 addresses (section 11), as in master; not sent",
    "undecodable": "an undecodable auth packet is refused with -115, where the reference hangs up; "
    "an undecodable reconfig uses up a zxid like all other writes (section 3); not sent",
    "acl-in-flight": "writes see a setACL that is pipelined before them (section 10); in the "
    "reference that is a matter of luck, so no write is pipelined behind one",
    "multi-in-flight": "a multi that fails leaves everything as before (section 12); in the "
    "reference a create behind it may be numbered as if it had not failed; not pipelined",
    "quota-in-flight": "quotas count what is in flight, the rest of a multi included, and every "
    "quota above (sections 12 and 17), the reference what is applied, for the deepest; so writes "
    "under a quota come one by one, and quotas are neither nested nor written by hand",
    "quota-shrink": "a setData that shrinks passes beyond a hard limit (section 17); the limits "
    "are not lowered, so that usage never is beyond one",
    "harmful": "deleteContainer, createSession and opcodes that contradict their flags are refused "
    "(sections 4 and 9); the reference takes them, or dies of them, so they are not sent",
}


def _all_may_read(acl: tuple[Acl, ...] | None) -> bool:
    return any(each.scheme == "world" and each.perms & Perms.READ for each in acl or ())


def _watches(op: Any) -> Iterator[tuple[str, str]]:
    """Modes and paths of the watches that a request may set."""
    if isinstance(op, Exists | GetData | GetChildren | GetChildren2) and op.watch:
        yield "standard", op.path
    elif isinstance(op, AddWatch):
        recursive = op.mode == AddWatchMode.PERSISTENT_RECURSIVE
        yield "recursive" if recursive else "persistent", op.path
    elif isinstance(op, SetWatches | SetWatches2):
        yield from (("standard", path) for path in (*op.data, *op.exist, *op.child))
        if isinstance(op, SetWatches2):
            yield from (("persistent", path) for path in op.persistent)
            yield from (("recursive", path) for path in op.persistent_recursive)
