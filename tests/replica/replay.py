"""A recorded story told again: each request goes to a real replica, each answer is compared.

The recordings are of one client; what a second one did meanwhile, and when the first one began a
new session, stands in a script beside each story. Compared is what was decoded, less the fields
that belong to the recorded run alone (`varies`); names that come out of Java's sets, as sets.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection
from typing import Any

from tests.replica.harness import Client, Ensemble
from tests.wire.plain import Plain, Vector, load, plain

from zabd.model.ids import MemberId
from zabd.model.ops import CloseSession, Op
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.model.watch_events import KeeperState
from zabd.wire import (
    FrameReader,
    decode_connect_response,
    decode_reply_header,
    decode_result,
    decode_watch_event,
    encode_connect,
    encode_request,
)
from zabd.wire.replies import REPLY_HEADER_SIZE

NOTHING = "nothing, and the connection was closed"
_RESPONSE_BYTES_MAX = 1 << 24
_UNRECORDED_XID = 1_000_000
_RELATIVE_ZXID_AT = 12  # behind the length and the header


class RawClient(Client):
    """A connection that keeps whole frames and understands none."""

    def __init__(self, ensemble: Ensemble, member: MemberId, connection_id: int) -> None:
        super().__init__(ensemble, member, connection_id)
        self.reader = FrameReader(_RESPONSE_BYTES_MAX)
        self.frames: list[bytes] = []

    def receive(self, data: bytes) -> None:
        """What the member wrote."""
        self.frames += self.reader.feed(data)


class Replay:
    """One story on one ensemble; `differences` is what came out otherwise than recorded."""

    def __init__(self, ensemble: Ensemble, member: MemberId, first: bytes | None = None) -> None:
        self.ensemble = ensemble
        self.member = member
        self.client = self.connect(member, first)
        self.client.frames.clear()
        self.events: list[object] = []
        self.differences: dict[str, tuple[object, object]] = {}
        self.connections: dict[str, RawClient] = {"first": self.client}
        self._others: list[Client] = []
        # By the recorded id: our id, our password, the recorded password.
        self._sessions: dict[int, tuple[int, bytes | None, str]] = {}
        self._seen_zxid = 0

    # What a script may do between two requests.

    def other(self) -> Client:
        """Somebody else, on the same member."""
        if not self._others:
            self._others.append(self.ensemble.connect(self.member))
        return self._others[0]

    def other_leaves(self) -> None:
        """Somebody else closes their session."""
        self._others.pop().call(CloseSession())

    def do(self, *ops: Op) -> None:
        """Somebody else does this meanwhile."""
        for op in ops:
            assert self.other().call(op).error == 0, op

    def also(self, *ops: Op) -> None:
        """The client itself asks for this, unrecorded; the answers do not matter."""
        for op in ops:
            self.client.send_raw(encode_request(_UNRECORDED_XID, op))
        self.ensemble.settle()
        self._collect()

    def had_more(self, event_type: int, path: str) -> None:
        """This event comes here, and did not come there."""
        self._collect()
        event = {"type": event_type, "state": KeeperState.SYNC_CONNECTED, "path": path}
        self.events.remove(event)

    def note_zxid(self) -> None:
        """What is there now is what the client will say that it saw last."""
        self._seen_zxid = self.ensemble.members[self.member].tree.zxid

    def resume(self, name: str) -> None:
        """Go on with the connection of this record."""
        self.client = self.connections[name]

    def had_session(self, recorded_id: int, recorded_password: str) -> None:
        """There is a session whose beginning was not recorded."""
        response = decode_connect_response(self.connect(self.member).frames[0])
        ours = (response.session_id, response.password, recorded_password)
        self._sessions[recorded_id] = ours

    def had_closed_session(self, recorded_id: int, recorded_password: str) -> None:
        """As `had_session`, but it was closed by its client."""
        self.had_session(recorded_id, recorded_password)
        last = max(self.ensemble.members[self.member].clients.connections)
        client = self.ensemble._clients[self.member, last]
        client.send_raw(encode_request(_UNRECORDED_XID, CloseSession()))
        self.ensemble.settle()

    def renew(self) -> None:
        """The client begins a new session; what it was told of in the old one is over."""
        self.client = self.connect(self.member)
        self.client.frames.clear()

    def connect(self, member: MemberId, request: bytes | None = None) -> RawClient:
        """A connection that has asked for a session."""
        dialled = self.ensemble.dial(member)
        raw = RawClient(self.ensemble, member, dialled.connection_id)
        self.ensemble._clients[member, dialled.connection_id] = raw
        usual = ConnectRequest(0, 0, 10_000, 0, bytes(PASSWORD_SIZE), read_only=False)
        raw.send_raw(request or encode_connect(usual))
        self.ensemble.settle()
        return raw

    # The story.

    def tell(
        self,
        story: Collection[Vector],
        script: dict[str, Callable[[Replay], None]],
        skipped: Collection[str] = (),
    ) -> None:
        """Every record in its order, each behind what the script has for it."""
        unknown = {*script, *skipped} - {vector["name"] for vector in story}
        assert not unknown, f"no such records: {unknown}"
        for vector in story:
            name = vector["name"]
            if name in script:
                script[name](self)
            if name not in skipped:
                wanted, came = self._ask(vector)
                if wanted != came:
                    self.differences[name] = (wanted, came)

    def report(self) -> str:
        """The differences, for people."""
        return "\n".join(
            f"{name}\n  recorded {recorded}\n  came     {came}"
            for name, (recorded, came) in self.differences.items()
        )

    def _ask(self, vector: Vector) -> tuple[object, object]:
        wanted = comparable(vector["decoded"].get("response"), vector["varies"])
        if vector["kind"] == "event":
            self._collect()
            return wanted["event"], self.events.pop(0) if self.events else "no event"
        if vector["kind"] == "connect":
            came = self._ask_for_session(vector)
        else:
            came = self._ask_for_answer(vector)
        if vector["response_hex"] is None:
            return NOTHING, came
        return wanted, comparable(came, vector["varies"])

    def _ask_for_session(self, vector: Vector) -> object:
        asked = vector["decoded"]["request"]
        request = bytes.fromhex(vector["request_hex"])
        known = self._sessions.get(asked["sessionId"])
        if known is not None:
            session_id, password, recorded = known
            given = asked["passwd"]["hex"]
            request = encode_connect(
                ConnectRequest(
                    asked["protocolVersion"],
                    asked["lastZxidSeen"],
                    asked["timeOut"],
                    session_id,
                    password if given == recorded else bytes.fromhex(given),
                    asked.get("readOnly"),
                )
            )
        member = self.ensemble.leader if vector["server"].startswith("leader") else self.member
        self.client = self.connections[vector["name"]] = self.connect(member, request)
        if not self.client.frames:
            return NOTHING if self.client.closed else "nothing"
        response = decode_connect_response(self.client.frames.pop(0))
        answered = (vector["decoded"].get("response") or {}).get("sessionId")
        if answered:
            recorded = vector["decoded"]["response"]["passwd"]["hex"]
            ours = (response.session_id, response.password, recorded)
            self._sessions.setdefault(answered, ours)
        decoded = plain(response)
        if response.read_only is None:
            del decoded["readOnly"]
        return decoded

    def _ask_for_answer(self, vector: Vector) -> object:
        self._collect()
        request = bytes.fromhex(vector["request_hex"])
        if self._seen_zxid and "request.body.relativeZxid" in vector["varies"]:
            seen = self._seen_zxid.to_bytes(8, "big")
            request = request[:_RELATIVE_ZXID_AT] + seen + request[_RELATIVE_ZXID_AT + 8 :]
        self.client.send_raw(request)
        self.ensemble.settle()
        replies = self._collect()
        if not replies:
            return NOTHING if self.client.closed else "nothing"
        [frame] = replies
        return _decode(vector["opcode"], frame)

    def _collect(self) -> list[bytes]:
        """Put the events that came with the events; give the rest."""
        frames, self.client.frames = self.client.frames, []
        replies = []
        for frame in frames:
            if decode_reply_header(frame)[0] == -1:
                event = decode_watch_event(frame)
                self.events.append({"type": event.type, "state": event.state, "path": event.path})
            else:
                replies.append(frame)
        return replies


def _decode(opcode: int, frame: bytes) -> dict[str, Any]:
    xid, zxid, error = decode_reply_header(frame)
    decoded: dict[str, Any] = {"header": {"xid": xid, "zxid": zxid, "err": error}}
    if len(frame) > REPLY_HEADER_SIZE:
        decoded["body"] = plain(decode_result(opcode, frame))
    return decoded


def comparable(response: Plain, varies: Collection[str]) -> Plain:
    """A decoded response without what differs from run to run."""
    response = copy.deepcopy(response)
    body = (response or {}).get("body", {})
    if "end" in body:
        # What our codec makes of a multi has no headers; the shape of each result tells its type.
        response["body"] = {"results": [entry["result"] for entry in body["results"]]}
    for path in varies:
        where, _, rest = path.partition(".")
        if where == "response":
            _blank(response, re.findall(r"[^.\[\]]+", rest.replace(".result.", ".")))
    return _sorted(response)


def _blank(value: Plain, steps: list[str]) -> None:
    for step in steps[:-1]:
        index = int(step) if isinstance(value, list) else step
        try:
            value = value[index]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(value, dict) and steps[-1] in value:
        value[steps[-1]] = "varies"


def _sorted(value: Plain) -> Plain:
    if isinstance(value, dict):
        return {
            key: sorted(part, key=json.dumps)
            if key in {"children", "ephemerals", "clientInfo"}
            else _sorted(part)
            for key, part in value.items()
        }
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def story(file: str, server: str = "") -> list[Vector]:
    """The records of a file that were made with such a server."""
    return [vector for vector in load(file) if server in ("", vector["server"])]
