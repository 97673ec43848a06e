"""The tree once more, as slow and plain as it can be: what random ops are compared with.

State is a dict of plain dicts, children are found by looking at every path, a multi works on a
copy. Rights are left out: the ops of the properties have ACLs that everybody may use.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateSession,
    CreateTtl,
    Delete,
    DeleteContainer,
    Multi,
    Op,
    SetAcl,
    SetData,
)
from zabd.model.stat import Stat

SYSTEM = ("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota")

CreateOp = Create | Create2 | CreateContainer | CreateTtl


class RefusedError(Exception):
    """The spec's way to say no."""


def parent_of(path: str) -> str:
    """Everything before the last slash."""
    head = path[: path.rfind("/")]
    return head or "/"


@dataclass
class Spec:
    """One server, no pipeline, no log."""

    sessions: dict[int, int] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in SYSTEM:
            self.nodes[path] = {
                "data": b"",
                "acl": None,
                "owner": 0,
                "ttl": 0,
                "made": 0,
                "cversion": {"/": -1, "/zookeeper": -2}.get(path, 0),
                "version": -1 if path.endswith("config") else 0,
                "aversion": -1 if path.endswith("config") else 0,
                "zxids": [0, 0, 0],
                "times": [0, 0],
            }

    def children(self, path: str) -> list[str]:
        return [other for other in self.nodes if other != "/" and parent_of(other) == path]

    def do(self, zxid: int, now: int, session: int, op: Op) -> object:
        """The path made, None, an error code, or a list of those for a multi."""
        if isinstance(op, Multi):
            return self.multi(zxid, now, session, op)
        try:
            return self.one(zxid, now, session, op)
        except RefusedError as refused:
            return refused.args[0]

    def multi(self, zxid: int, now: int, session: int, op: Multi) -> list[object]:
        before = copy.deepcopy(self.nodes)
        done: list[object] = []
        for part in op.ops:
            try:
                done.append(self.one(zxid, now, session, part))
            except RefusedError as refused:
                self.nodes = before
                rest = len(op.ops) - len(done) - 1
                return [0] * len(done) + [refused.args[0]] + [-2] * rest
        return done

    def one(self, zxid: int, now: int, session: int, op: Op) -> object:
        if isinstance(op, CreateSession):
            self.sessions[session] = op.timeout_ms
            return None
        if isinstance(op, DeleteContainer):
            return self.clean_up(zxid, now, op.path)
        if session not in self.sessions:
            raise RefusedError(ErrorCode.SESSION_EXPIRED)
        if isinstance(op, CloseSession):
            for path in [p for p, node in self.nodes.items() if node["owner"] == session]:
                self.remove(zxid, path)
            del self.sessions[session]
            return None
        if isinstance(op, Delete):
            return self.delete(zxid, op)
        if isinstance(op, SetData | SetAcl | Check):
            return self.touch(zxid, now, op)
        return self.create(zxid, now, session, op)

    def create(self, zxid: int, now: int, session: int, op: CreateOp) -> str:
        parent = self.nodes.get(parent_of(op.path))
        if parent is None:
            raise RefusedError(ErrorCode.NO_NODE)
        path = op.path + (f"{parent['made']:010}" if op.flags in (2, 3, 6) else "")
        if path in self.nodes:
            raise RefusedError(ErrorCode.NODE_EXISTS)
        if parent["owner"]:
            raise RefusedError(ErrorCode.NO_CHILDREN_FOR_EPHEMERALS)
        parent["made"] += 1
        parent["cversion"] += 1
        parent["zxids"][2] = zxid
        self.nodes[path] = {
            "data": op.data,
            "acl": op.acl,
            "owner": session if op.flags in (1, 3) else 0,
            "ttl": op.ttl if isinstance(op, CreateTtl) else -isinstance(op, CreateContainer),
            "made": 0,
            "cversion": 0,
            "version": 0,
            "aversion": 0,
            "zxids": [zxid, zxid, zxid],
            "times": [now, now],
        }
        return path

    def delete(self, zxid: int, op: Delete) -> None:
        if op.path in SYSTEM:
            raise RefusedError(ErrorCode.BAD_ARGUMENTS)
        if op.path not in self.nodes:
            raise RefusedError(ErrorCode.NO_NODE)
        if op.version not in (-1, self.nodes[op.path]["version"]):
            raise RefusedError(ErrorCode.BAD_VERSION)
        if self.children(op.path):
            raise RefusedError(ErrorCode.NOT_EMPTY)
        self.remove(zxid, op.path)

    def remove(self, zxid: int, path: str) -> None:
        del self.nodes[path]
        parent = self.nodes[parent_of(path)]
        parent["cversion"] += 1
        parent["zxids"][2] = zxid

    def touch(self, zxid: int, now: int, op: SetData | SetAcl | Check) -> None:
        node = self.nodes.get(op.path)
        if node is None:
            raise RefusedError(ErrorCode.NO_NODE)
        if op.version not in (-1, node["aversion" if isinstance(op, SetAcl) else "version"]):
            raise RefusedError(ErrorCode.BAD_VERSION)
        if isinstance(op, SetData):
            node["data"] = op.data
            node["version"] += 1
            node["zxids"][1] = zxid
            node["times"][1] = now
        elif isinstance(op, SetAcl):
            node["acl"] = op.acl
            node["aversion"] += 1

    def clean_up(self, zxid: int, now: int, path: str) -> None:
        if path in SYSTEM:
            raise RefusedError(ErrorCode.BAD_ARGUMENTS)
        node = self.nodes.get(path)
        if node is None:
            raise RefusedError(ErrorCode.NO_NODE)
        if self.children(path):
            raise RefusedError(ErrorCode.NOT_EMPTY)
        over = node["ttl"] > 0 and now - node["times"][1] > node["ttl"]
        if node["ttl"] != -1 and not over:
            raise RefusedError(ErrorCode.BAD_VERSION)
        self.remove(zxid, path)

    def stats(self) -> dict[str, tuple[bytes | None, Stat]]:
        """Data and Stat of every znode."""
        return {
            path: (
                node["data"],
                Stat(
                    node["zxids"][0],
                    node["zxids"][1],
                    *node["times"],
                    node["version"],
                    node["cversion"],
                    node["aversion"],
                    node["owner"],
                    len(node["data"] or b""),
                    len(self.children(path)),
                    node["zxids"][2],
                ),
            )
            for path, node in self.nodes.items()
        }
