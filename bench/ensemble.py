"""Three members in one process, from a client's bytes to its bytes, without sockets and disks.

What is measured with it is the code of a member and nothing else: `Replica`, `Storage` and the peer
codec as they are in service, between them lists in the place of sockets and a disk that is done at
once. Rounds are turns of all members: what one writes in a round the others read in the next.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from zabd.model.ops import Op
from zabd.model.session import PASSWORD_SIZE, ConnectRequest, ConnectResponse
from zabd.replica import Replica, ReplicaConfig
from zabd.replica import effects as out
from zabd.storage import Storage, StorageConfig
from zabd.storage.disk import (
    DiskOp,
    DiskOutcome,
    DiskResult,
    FreeSpace,
    Lane,
    List,
    Read,
    Rename,
    Size,
    Unlink,
    WriteAt,
)
from zabd.wire.connection import ClientConnection
from zabd.zab import effects as zab
from zabd.zab import events
from zabd.zab.codec import Decoder, encode_buffers
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.messages import Message
from zabd.znode_tree.tree import ZnodeTree

TICK_MS: Final = 2000
REPLY_HEADER_BYTES: Final = 20


class NoDisk:
    """A disk that forgets the log and is always done in the next round."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._files: dict[str, bytes] = {}
        self.syncs = 0

    def submit(
        self,
        ops: Sequence[DiskOp],
        done: Callable[[DiskOutcome], None],
        lane: Lane = Lane.LOG,
    ) -> None:
        """See `Disk`."""
        self.syncs += lane is Lane.LOG
        self._post(partial(done, DiskOutcome([self._perform(op) for op in ops])))

    def _perform(self, op: DiskOp) -> DiskResult:
        match op:
            case WriteAt(file, _, data) if not file.startswith("log."):
                self._files[file] = data if isinstance(data, bytes) else b"".join(data)
            case Rename(source, target):
                self._files[target] = self._files.pop(source)
            case Unlink(file):
                self._files.pop(file, None)
            case List():
                return sorted(self._files)
            case Read(file, offset, size_bytes):
                return self._files[file][offset : offset + size_bytes]
            case Size(file):
                return len(self._files[file])
            case FreeSpace():
                return 1 << 40
            case _:
                pass
        return None


class Clock:
    """Wall time stands still."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return 1_700_000_000_000


class Member:
    """One member, driven as the server's driver does it."""

    def __init__(self, ensemble: "Ensemble", me: int, voters: tuple[int, ...]) -> None:
        self.me = me
        self._ensemble = ensemble
        self._posted: deque[Callable[[], None]] = deque()
        self.disk = NoDisk(self._posted.append)
        self._storage = Storage(self.disk, self.disk, StorageConfig(), lambda: ensemble.now_ms)
        config = ReplicaConfig(
            EnsembleConfig(me=me, voters=voters, tick_ms=TICK_MS),
            min_session_timeout_ms=2 * TICK_MS,
            max_session_timeout_ms=20 * TICK_MS,
            snapshot_every_txns=1 << 62,
            snapshot_every_bytes=1 << 62,
        )
        self.tree = ZnodeTree()
        self.replica = Replica(
            config, RecoveredState(), self.tree, random.Random(me), Clock(), lambda _n, _f: None
        )
        self._events: deque[Any] = deque([events.Start()])
        self._out: dict[int, list[bytes]] = {}
        self.inbox: deque[tuple[int, bytes]] = deque()
        self._decoders: dict[int, Decoder] = {}
        self._encoded: tuple[object, tuple[bytes, ...]] | None = None
        self.frames_sent = 0

    def recover(self) -> None:
        """Read the empty disk."""
        recovered: list[object] = []
        self._storage.recover(Sink(), self.me, None, recovered.append)
        while not recovered:
            self._posted.popleft()()

    def turn(self) -> bool:
        """Take what has come, then flush; whether there was anything."""
        posted = list(self._posted)
        self._posted.clear()
        inbox = list(self.inbox)
        self.inbox.clear()
        for done in posted:
            done()
        for link, data in inbox:
            decoder = self._decoders.setdefault(link, Decoder())
            for message in decoder.feed(data):
                self._events.append(events.Received(link, message))
        replica, now_ms = self.replica, self._ensemble.now_ms
        if replica.deadline_ms <= now_ms:
            self._events.append(events.Elapsed())
        busy = bool(self._events)
        while self._events:
            for effect in replica.step(self._events.popleft(), now_ms):
                self._perform(effect)
        for effect in replica.flush(now_ms):
            busy = True
            self._perform(effect)
        for link, frames in self._out.items():
            if frames:
                self._ensemble.carry(self.me, link, b"".join(frames))
                frames.clear()
                busy = True
        self._encoded = None
        return busy

    def happened(self, event: object) -> None:
        """Something for the next turn."""
        self._events.append(event)

    def _perform(self, effect: object) -> None:
        kind = type(effect)
        if kind is out.Write:
            self._ensemble.deliver(effect.connection_id, effect.data)  # type: ignore[attr-defined]
        elif kind is zab.Send:
            self._send(effect.link, effect.message)  # type: ignore[attr-defined]
        elif kind is zab.Append:
            done = partial(self._persisted, effect.append_id)  # type: ignore[attr-defined]
            self._storage.append(effect.record, effect.committed, done)  # type: ignore[attr-defined]
        else:
            self._perform_rarely(effect)

    def _perform_rarely(self, effect: object) -> None:
        match effect:
            case zab.Notify(to, notification):
                self._ensemble.members[to].happened(events.Notified(notification))
            case zab.Dial(to):
                self._ensemble.dial(self, to)
            case zab.PersistEpochs(request_id, accepted, current, cluster_id):
                done = partial(self.happened, events.EpochsPersisted(request_id))
                self._storage.persist_epochs(accepted, current, cluster_id, done)
            case zab.FindRecord(request_id, zxid):
                self._storage.find_record(
                    zxid,
                    lambda position: self.happened(
                        events.RecordFound(request_id, position, exact=True)
                    ),
                )
            case out.PauseReading() | out.ResumeReading():
                pass
            case _:
                raise AssertionError(f"nothing here does {effect}")

    def _send(self, link: int, message: Message) -> None:
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, encode_buffers(message))
        self.frames_sent += 1
        self._out.setdefault(link, []).extend(self._encoded[1])

    def _persisted(self, append_id: int) -> None:
        if self._events and type(self._events[-1]) is events.Persisted:
            self._events[-1] = events.Persisted(append_id)
        else:
            self._events.append(events.Persisted(append_id))


class Sink:
    """An empty disk has nothing for it."""

    def begin_snapshot(self, position: object) -> None:
        """None comes."""

    def snapshot_chunk(self, chunk: bytes) -> None:
        """None comes."""

    def end_snapshot(self) -> None:
        """None comes."""

    def record(self, batch: object) -> None:
        """None comes."""


class Client:
    """One connection that keeps so many requests outstanding; replies are counted, not decoded."""

    def __init__(self, ensemble: "Ensemble", member: Member, number: int) -> None:
        self.number = number
        self.member = member
        self._ensemble = ensemble
        self._wire = ClientConnection()
        self._handshake = True
        self._partial = b""
        self.session: ConnectResponse | None = None
        member.replica.accept(number, "127.0.0.1:40000", ensemble.now_ms)
        request = ConnectRequest(0, 0, 20 * TICK_MS, 0, bytes(PASSWORD_SIZE), False)
        self.send(self._wire.connect(request))
        self.answered = 0

    def encode(self, op: Op) -> bytes:
        """A request with the next xid."""
        return self._wire.send(op)[1]

    def send(self, chunk: bytes) -> None:
        """Bytes to the member."""
        self.member.replica.receive(self.number, chunk, self._ensemble.now_ms)

    def receive(self, data: bytes) -> None:
        """Count the replies."""
        if self._handshake:
            [item] = self._wire.receive(data)
            assert isinstance(item, ConnectResponse)
            self.session, self._handshake = item, False
            return
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            assert not any(data[at + 16 : at + 20]), "a reply is an error"
            at += 4 + size
            self.answered += 1


class Ensemble:
    """Members 1 to n, serving."""

    def __init__(self, members: int = 3) -> None:
        self.now_ms = 0
        voters = tuple(range(1, members + 1))
        self.members = {me: Member(self, me, voters) for me in voters}
        self.clients: dict[int, Client] = {}
        self._links: dict[tuple[int, int], tuple[int, int]] = {}
        self._last_id = 0
        for member in self.members.values():
            member.recover()
        while not all(member.replica.serving for member in self.members.values()):
            self.round()
            self.now_ms += 10

    @property
    def leader(self) -> Member:
        """The member that leads."""
        [leader] = [m for m in self.members.values() if m.replica.leadership is not None]
        return leader

    def round(self) -> bool:
        """A turn of every member; whether any had something to do."""
        return max([member.turn() for member in self.members.values()])

    def settle(self) -> None:
        """Rounds until nothing is left to do."""
        while self.round():
            pass

    def connect(self, member: int) -> Client:
        """A client with a session."""
        self._last_id += 1
        client = Client(self, self.members[member], self._last_id)
        self.clients[client.number] = client
        while client.session is None:
            self.round()
        return client

    def deliver(self, client: int, data: bytes) -> None:
        """Bytes of a member to a client."""
        self.clients[client].receive(data)

    def carry(self, member: int, link: int, data: bytes) -> None:
        """Bytes of a member to a peer, which takes them in its next turn."""
        to, its_link = self._links[member, link]
        self.members[to].inbox.append((its_link, data))

    def dial(self, member: Member, to: int) -> None:
        """Connect two members."""
        self._last_id += 2
        mine, theirs = self._last_id, self._last_id + 1
        self._links[member.me, mine] = (to, theirs)
        self._links[to, theirs] = (member.me, mine)
        member.happened(events.Dialled(mine, to))
