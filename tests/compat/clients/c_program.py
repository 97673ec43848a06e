"""The scenario on ZooKeeper's C client, as Debian packages it, through its shared library."""

import ctypes as c
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from telling import PATIENCE_S, done, expect, fail, lose_member, take

LIBRARY = "libzookeeper_mt.so.2"
SESSION_TIMEOUT_MS = 10_000
CONNECTED_STATE, SESSION_EVENT = 3, -1
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
EPHEMERAL, SEQUENCE, CONTAINER, WITH_TTL = 1, 2, 4, 5
NO_NODE, NO_AUTH, BAD_VERSION = -101, -102, -103
NO_CHILDREN_FOR_EPHEMERALS, NODE_EXISTS, NOT_EMPTY = -108, -110, -111
RUNTIME_INCONSISTENCY, INVALID_ACL = -2, -114
PATH_BYTES = 256


class ClientId(c.Structure):
    _fields_ = (("id", c.c_int64), ("password", c.c_char * 16))


class Stat(c.Structure):
    _fields_ = (
        ("czxid", c.c_int64),
        ("mzxid", c.c_int64),
        ("ctime", c.c_int64),
        ("mtime", c.c_int64),
        ("version", c.c_int32),
        ("cversion", c.c_int32),
        ("aversion", c.c_int32),
        ("ephemeral_owner", c.c_int64),
        ("data_length", c.c_int32),
        ("num_children", c.c_int32),
        ("pzxid", c.c_int64),
    )


class Strings(c.Structure):
    _fields_ = (("count", c.c_int32), ("data", c.POINTER(c.c_char_p)))


class Id(c.Structure):
    _fields_ = (("scheme", c.c_char_p), ("id", c.c_char_p))


class Acl(c.Structure):
    _fields_ = (("perms", c.c_int32), ("id", Id))


class Acls(c.Structure):
    _fields_ = (("count", c.c_int32), ("data", c.POINTER(Acl)))


class Operation(c.Structure):
    # The largest member of the union is a create: four pointers, three numbers and a long, aligned.
    _fields_ = (("type", c.c_int), ("body", c.c_int64 * 8))


class OperationResult(c.Structure):
    _fields_ = (
        ("error", c.c_int),
        ("value", c.c_char_p),
        ("value_length", c.c_int),
        ("stat", c.POINTER(Stat)),
    )


Watcher = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_int, c.c_char_p, c.c_void_p)
Completion = c.CFUNCTYPE(None, c.c_int, c.c_void_p)


class Client:
    """One handle of the library. Every call that fails raises, unless another code is wanted."""

    def __init__(self, hosts: str) -> None:
        self.library = c.CDLL(LIBRARY)
        self.library.zookeeper_init.restype = c.c_void_p
        self.library.zoo_client_id.restype = c.POINTER(ClientId)
        self.library.zoo_set_debug_level(1)
        self.events: queue.Queue[tuple[int, str]] = queue.Queue()
        self._watcher = Watcher(self._watched)  # kept: the library calls it at any time
        self._completions: list[object] = []
        self.handle = c.c_void_p(
            self.library.zookeeper_init(
                hosts.encode(), self._watcher, SESSION_TIMEOUT_MS, None, None, 0
            )
        )
        self.open_acl = Acls.in_dll(self.library, "ZOO_OPEN_ACL_UNSAFE")
        self.creator_acl = Acls.in_dll(self.library, "ZOO_CREATOR_ALL_ACL")
        until(self.connected, "the connection")

    def _watched(self, _: int, kind: int, __: int, path: bytes, ___: int) -> None:
        if kind != SESSION_EVENT:
            self.events.put((kind, path.decode()))

    def connected(self) -> bool:
        return bool(self.library.zoo_state(self.handle) == CONNECTED_STATE)

    @property
    def session_id(self) -> int:
        return int(self.library.zoo_client_id(self.handle).contents.id)

    def call(self, function: str, *arguments: object, wanted: int = 0) -> None:
        expect(
            (function, getattr(self.library, function)(self.handle, *arguments)), (function, wanted)
        )

    def create(
        self, path: str, mode: int = 0, acl: Acls | None = None, ttl: int = -1, wanted: int = 0
    ) -> str:
        name = c.create_string_buffer(PATH_BYTES)
        head = (path.encode(), b"data", 4, c.byref(acl or self.open_acl), mode)
        tail = (name, PATH_BYTES)
        if ttl < 0:
            self.call("zoo_create", *head, *tail, wanted=wanted)
        else:
            self.call("zoo_create_ttl", *head, c.c_int64(ttl), *tail, wanted=wanted)
        return name.value.decode()

    def set(self, path: str, data: bytes, version: int = -1, wanted: int = 0) -> Stat:
        stat = Stat()
        self.call("zoo_set2", path.encode(), data, len(data), version, c.byref(stat), wanted=wanted)
        return stat

    def get(self, path: str, *, watch: bool = False, wanted: int = 0) -> bytes:
        buffer, size, stat = c.create_string_buffer(1024), c.c_int(1024), Stat()
        self.call(
            "zoo_wget", path.encode(), self._watcher if watch else None, None,
            buffer, c.byref(size), c.byref(stat), wanted=wanted,
        )  # fmt: skip
        return b"" if wanted else buffer.raw[: size.value]

    def stat(self, path: str, *, watch: bool = False, wanted: int = 0) -> Stat:
        stat = Stat()
        watcher = self._watcher if watch else None
        self.call("zoo_wexists", path.encode(), watcher, None, c.byref(stat), wanted=wanted)
        return stat

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        strings = Strings()
        watcher = self._watcher if watch else None
        self.call("zoo_wget_children", path.encode(), watcher, None, c.byref(strings))
        return sorted(strings.data[at].decode() for at in range(strings.count))

    def delete(self, path: str, version: int = -1, wanted: int = 0) -> None:
        self.call("zoo_delete", path.encode(), version, wanted=wanted)

    def authenticate(self, credentials: bytes) -> None:
        codes: queue.Queue[int] = queue.Queue()
        completion = Completion(lambda code, _: codes.put(code))
        self._completions.append(completion)
        self.call("zoo_add_auth", b"digest", credentials, len(credentials), completion, None)
        expect(codes.get(timeout=PATIENCE_S), 0)

    def multi(self, *prepare: Callable[[object], None], wanted: int = 0) -> list[int]:
        operations = (Operation * len(prepare))()
        results = (OperationResult * len(prepare))()
        for initialise, operation in zip(prepare, operations, strict=True):
            initialise(c.byref(operation))
        self.call("zoo_multi", len(prepare), operations, results, wanted=wanted)
        return [result.error for result in results]

    def close(self) -> None:
        expect(self.library.zookeeper_close(self.handle), 0)


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll what another thread or process makes true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            fail(f"waited in vain for {what}")
        time.sleep(0.02)


def kinds(client: Client, root: str) -> None:
    """Every kind of node, and what tells them apart."""
    expect(client.create(root), root)
    expect(client.stat(root).ephemeral_owner, 0)
    client.create(root, wanted=NODE_EXISTS)
    client.create(f"{root}/ephemeral", EPHEMERAL)
    expect(client.stat(f"{root}/ephemeral").ephemeral_owner, client.session_id)
    client.create(f"{root}/ephemeral/child", wanted=NO_CHILDREN_FOR_EPHEMERALS)
    first = client.create(f"{root}/s-", SEQUENCE)
    second = client.create(f"{root}/s-", SEQUENCE | EPHEMERAL)
    expect(int(second[-10:]) - int(first[-10:]), 1)
    expect(client.stat(second).ephemeral_owner, client.session_id)


def perishable(client: Client, root: str) -> None:
    """A container goes with its last child, a znode with a time to live when that is over."""
    client.create(f"{root}/container", CONTAINER)
    client.create(f"{root}/container/child")
    client.delete(f"{root}/container/child")
    client.create(f"{root}/brief", WITH_TTL, ttl=500)
    gone = {f"{root}/container", f"{root}/brief"}
    until(lambda: not gone & {f"{root}/{name}" for name in client.children(root)}, "deletions")


def versions(client: Client, root: str) -> None:
    """A condition on the version decides."""
    path = f"{root}/versions"
    client.create(path)
    expect(client.set(path, b"one", 0).version, 1)
    client.set(path, b"two", 0, wanted=BAD_VERSION)
    expect(client.get(path), b"one")
    client.delete(path, 0, wanted=BAD_VERSION)
    client.delete(root, wanted=NOT_EMPTY)
    client.delete(path, 1)
    client.get(path, wanted=NO_NODE)


def watches(client: Client, root: str) -> None:
    """Each of the four events, once."""
    path = f"{root}/w"
    client.stat(path, watch=True, wanted=NO_NODE)
    client.create(path)
    expect(take(client.events), (CREATED, path))
    client.get(path, watch=True)
    client.set(path, b"changed")
    expect(take(client.events), (CHANGED, path))
    client.children(path, watch=True)
    client.create(f"{path}/child")
    expect(take(client.events), (CHILD, path))
    client.delete(f"{path}/child")
    client.stat(path, watch=True)
    client.delete(path)
    expect(take(client.events), (DELETED, path))
    expect(client.events.empty(), True)


def multi(client: Client, root: str) -> None:
    """All or nothing, and a code for each operation."""
    # The operations point at these bytes, which therefore have names.
    path, absent, library = f"{root}/multi".encode(), f"{root}/absent".encode(), client.library
    name = c.create_string_buffer(PATH_BYTES)
    acl = c.byref(client.open_acl)
    outcome = client.multi(
        lambda op: library.zoo_create_op_init(op, path, b"", 0, acl, 0, name, PATH_BYTES),
        lambda op: library.zoo_check_op_init(op, path, 0),
        lambda op: library.zoo_set_op_init(op, path, b"set", 3, 0, None),
    )
    expect((outcome, client.get(path.decode())), ([0, 0, 0], b"set"))
    outcome = client.multi(
        lambda op: library.zoo_delete_op_init(op, path, -1),
        lambda op: library.zoo_check_op_init(op, absent, 0),
        lambda op: library.zoo_set_op_init(op, path, b"no", 2, -1, None),
        wanted=NO_NODE,
    )
    expect(outcome, [0, NO_NODE, RUNTIME_INCONSISTENCY])
    expect(client.get(path.decode()), b"set")


def acl(client: Client, root: str, hosts: str) -> None:
    """What only its creator may see."""
    path = f"{root}/acl"
    client.create(path, acl=client.creator_acl, wanted=INVALID_ACL)
    client.authenticate(b"user:password")
    client.create(path, acl=client.creator_acl)
    acls, stat = Acls(), Stat()
    client.call("zoo_get_acl", path.encode(), c.byref(acls), c.byref(stat))
    expect((acls.count, acls.data[0].perms, acls.data[0].id.scheme), (1, 31, b"digest"))
    stranger = Client(hosts)
    stranger.get(path, wanted=NO_AUTH)
    stranger.close()
    client.call("zoo_set_acl", path.encode(), 0, c.byref(client.open_acl))
    expect(client.get(path), b"data")


def reconnect(client: Client, root: str) -> None:
    """The session lives on at another member, with its ephemerals and its watches."""
    session_id = client.session_id
    client.create(f"{root}/watched")
    client.get(f"{root}/watched", watch=True)
    lose_member(session_id)
    expect(take(client.events), (CHANGED, f"{root}/watched"))
    until(client.connected, "the connection to another member")
    expect(client.get(f"{root}/watched"), b"changed meanwhile")
    expect(client.session_id, session_id)
    expect(client.stat(f"{root}/ephemeral").ephemeral_owner, session_id)


def main(hosts: str, root: str) -> None:
    """All steps, in the order in which the test expects them."""
    client = Client(hosts)
    done("connect")
    kinds(client, root)
    done("kinds")
    versions(client, root)
    done("versions")
    watches(client, root)
    done("watches")
    multi(client, root)
    done("multi")
    acl(client, root, hosts)
    done("acl")
    perishable(client, root)
    done("perishable")
    reconnect(client, root)
    done("reconnect")
    client.close()
    done("close")


if __name__ == "__main__":
    main(*sys.argv[1:])
