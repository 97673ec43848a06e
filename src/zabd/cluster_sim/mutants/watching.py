"""Mistakes about watches: M43-M45 and M73 of the gallery."""

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.ops import OpCode
from zabd.model.watch_events import EventType
from zabd.replica import intake, pipeline, watch_requests
from zabd.replica.clients import Clients
from zabd.replica.connection import Connection
from zabd.replica.connections import Connections
from zabd.replica.effects import Effect
from zabd.replica.reads import READS
from zabd.wire.requests import decode_path_watch
from zabd.znode_tree.tree import Change, ZnodeTree
from zabd.znode_tree.watches import WatchKind, WatchTable

_EVENT: Final = b"\xff\xff\xff\xff"  # the xid of an event, behind the length of its frame
_LENGTH_BYTES: Final = 4
_CONTENT_AT: Final = 20  # type, state and path, behind the header

Missed = list[tuple[EventType, str]]


def _watch_after_reply() -> list[Patch]:
    fire, take_effects = Clients.fire, Connections.take_effects
    late: WeakKeyDictionary[Clients, list[tuple[Sequence[Change], int]]] = WeakKeyDictionary()

    def put_off(self: Clients, changes: Sequence[Change], zxid: int) -> None:
        late.setdefault(self, []).append((changes, zxid))

    def fire_at_the_end(self: Clients) -> list[Effect]:
        for changes, zxid in late.pop(self, []):
            fire(self, changes, zxid)
        return take_effects(self)

    return [(Clients, "fire", put_off), (Connections, "take_effects", fire_at_the_end)]


def _events_by_path() -> list[Patch]:
    take_effects = Connections.take_effects

    def tidy(self: Connections) -> list[Effect]:
        for connection in self._dirty:
            connection.output = _grouped(connection.output)
        return take_effects(self)

    return [(Connections, "take_effects", tidy)]


def _grouped(output: list[bytes]) -> list[bytes]:
    """Events that follow each other, in the order of what they say."""
    grouped: list[bytes] = []
    run: list[bytes] = []
    for frame in output:
        alone = int.from_bytes(frame[:_LENGTH_BYTES], "big") + _LENGTH_BYTES == len(frame)
        if alone and frame.startswith(_EVENT, _LENGTH_BYTES):
            run.append(frame)
            continue
        grouped += [*sorted(run, key=lambda each: each[_CONTENT_AT:]), frame]
        run = []
    return [*grouped, *sorted(run, key=lambda each: each[_CONTENT_AT:])]


def _set_again_blindly() -> list[Patch]:
    def data(
        _tree: ZnodeTree,
        watches: WatchTable,
        connection: Connection,
        paths: tuple[str, ...],
        _since: int,
    ) -> Missed:
        for path in paths:
            watches.add(WatchKind.DATA, path, connection)
        return []

    return [(watch_requests, "_data", data)]


def _told_again() -> list[Patch]:
    data = watch_requests._data

    def off_by_one(
        tree: ZnodeTree,
        watches: WatchTable,
        connection: Connection,
        paths: tuple[str, ...],
        since: int,
    ) -> Missed:
        return data(tree, watches, connection, paths, since - 1)

    return [(watch_requests, "_data", off_by_one)]


def _watch_stays() -> list[Patch]:
    def fire(self: WatchTable, path: str, listening: int, told: dict[object, None]) -> None:
        for watcher, kinds in self._by_path[path].items():
            if kinds & listening:
                told[watcher] = None

    return [(WatchTable, "_fire", fire)]


def _watches_outlive() -> list[Patch]:
    def keep(_self: WatchTable, _watcher: object) -> None:
        return

    return [(WatchTable, "remove_watcher", keep)]


def _failed_read_arms() -> list[Patch]:
    get_data = READS[OpCode.GET_DATA]

    def arming(
        tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
    ) -> bytes:
        path, watch = decode_path_watch(frame)
        if watch:
            watches.add(WatchKind.DATA, path, connection)
        return get_data(tree, watches, connection, xid, frame)

    reads = {**READS, OpCode.GET_DATA: arming}
    return [(intake, "READS", reads), (pipeline, "READS", reads)]


WATCHING: Final = (
    Mutant(
        name="watch-after-reply",
        bug="M43",
        what="the event of a change leaves after the replies that reveal it",
        history="events and replies go through two queues, and the reply overtakes the event",
        reference="classical",
        level="core",
        found_by=frozenset({"W1"}),
        patches=_watch_after_reply,
    ),
    Mutant(
        name="events-by-path",
        bug="M43",
        what="the events of one turn are handed out by path, not in the order of the changes",
        history="/b changes, then /a; who watches both is told of /a first",
        reference="classical",
        level="core",
        found_by=frozenset({"W2"}),
        patches=_events_by_path,
    ),
    Mutant(
        name="set-again-blindly",
        bug="M44",
        what="watches that a client sets again are armed, whatever has changed meanwhile",
        history="a znode changes while its watcher is away, and no event ever tells of it",
        reference="ZOOKEEPER-1412, ZOOKEEPER-706, ZOOKEEPER-3145",
        level="core",
        found_by=frozenset({"W5"}),
        patches=_set_again_blindly,
    ),
    Mutant(
        name="told-again",
        bug="M44",
        what="a client that sets its watches again is told again of the last change that it saw",
        history="`mzxid >= relativeZxid` where `>` is right: an event without a change",
        reference="classical",
        level="core",
        found_by=frozenset({"W4"}),
        patches=_told_again,
    ),
    Mutant(
        name="watch-stays",
        bug="M45",
        what="a standard watch that has fired is still there",
        history="one registration, two changes, two events",
        reference="ZOOKEEPER-1382",
        level="core",
        found_by=frozenset({"W3"}),
        patches=_watch_stays,
    ),
    Mutant(
        name="watches-outlive",
        bug="M45",
        what="the watches of a connection stay when it has ended",
        history="clients come and go, and the table of watches grows until the memory is full",
        reference="ZOOKEEPER-1382",
        level="core",
        found_by=frozenset({"W7"}),
        patches=_watches_outlive,
    ),
    Mutant(
        name="failed-read-arms",
        bug="M73",
        what="a getData of a znode that is not there arms its watch all the same",
        history="the client was told that nothing is there, and hears of a create it did not ask "
        "about",
        reference="classical",
        level="core",
        found_by=frozenset({"W6"}),
        patches=_failed_read_arms,
    ),
)
