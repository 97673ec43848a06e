"""The two records of a key, `started` and `result`, as UTF-8 JSON (dedup recipe, section 3.1).

Fields that this version does not know are kept when a record is rewritten and ignored otherwise.
Times are for people: no decision compares the clocks of two machines.

`server_ttl` says that the znode was made with a time to live, so that the ensemble itself ends it:
its Stat does not show that (client protocol, section 7). Without it, as in records of earlier
versions, the record's age is told by `ttl_ms` and the ensemble's stamps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from zabd.client.recipes.dedup.errors import RecordUnreadableError
from zabd.model.stat import Stat

VERSION: Final = 1
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"


class Codec(Protocol):
    """Puts a value into a record, and takes it out again."""

    name: str

    def encode(self, value: Any) -> Any:  # noqa: ANN401 - whatever a user's function returns
        """Something that JSON can hold."""
        ...

    def decode(self, stored: Any) -> Any:  # noqa: ANN401 - see encode
        """The value again."""
        ...


class JsonCodec:
    """Values that are JSON already."""

    name = "json"

    def encode(self, value: Any) -> Any:  # noqa: ANN401 - see Codec
        """The value itself."""
        return value

    def decode(self, stored: Any) -> Any:  # noqa: ANN401 - see Codec
        """The value itself."""
        return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The journal of an attempt that may have begun."""

    key: str
    attempt: int
    attempt_id: str
    payload_hash: str | None
    alg: str
    owner: Mapping[str, object]
    lock: str
    started_ms: int
    recovery_point: str | None = None
    recovery_data: Any = None
    phase: int = 0
    fencing_token: int | None = None
    ttl_ms: int | None = None
    server_ttl: bool = False
    rest: Mapping[str, object] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes of the znode."""
        return _encode(self)

    @classmethod
    def decode(cls, data: bytes | None) -> "Started":
        """Read the znode's bytes, or raise RecordUnreadableError."""
        return cls(**_fields(cls, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The recorded outcome."""

    key: str
    status: str
    attempt: int
    attempt_id: str
    payload_hash: str | None
    alg: str
    fencing_token: int
    seq: int
    codec: str
    value: Any
    result_ref: str | None
    omitted: bool
    error: Mapping[str, object] | None
    owner: Mapping[str, object]
    started_ms: int
    finished_ms: int
    ttl_ms: int | None
    digest: str | None = None
    token_epoch: int | None = None
    server_ttl: bool = False
    rest: Mapping[str, object] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes of the znode."""
        return _encode(self)

    @classmethod
    def decode(cls, data: bytes | None) -> "Result":
        """Read the znode's bytes, or raise RecordUnreadableError."""
        return cls(**_fields(cls, data))


def is_over(record: Started | Result, stat: Stat, now_ms: int) -> bool:
    """Whether its time is over by the ensemble's; what a server ends counts while it is there."""
    if record.server_ttl or record.ttl_ms is None:
        return False
    return now_ms > stat.mtime + record.ttl_ms


def _encode(record: "Started | Result") -> bytes:
    known = {name: getattr(record, name) for name in record.__slots__ if name != "rest"}
    text = json.dumps(
        {**record.rest, "v": VERSION, **known},
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return text.encode()


def _fields(kind: type[Started] | type[Result], data: bytes | None) -> dict[str, Any]:
    try:
        record = json.loads(data or b"")
        version = record.pop("v")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise RecordUnreadableError(f"a {kind.__name__} record that is not one: {error}") from error
    if version != VERSION:
        raise RecordUnreadableError(f"a {kind.__name__} record of version {version!r}, not 1")
    known = {name: record.pop(name) for name in kind.__slots__ if name in record}
    missing = [name for name in _REQUIRED[kind] if name not in known]
    if missing:
        raise RecordUnreadableError(f"a {kind.__name__} record without {', '.join(missing)}")
    return {**known, "rest": record}


_OPTIONAL: Final = frozenset(
    {
        "rest",
        "recovery_point",
        "recovery_data",
        "phase",
        "token_epoch",
        "fencing_token",
        "digest",
        "result_ref",
        "ttl_ms",
        "server_ttl",
    }
)
_REQUIRED: Final[dict[type[Started] | type[Result], list[str]]] = {
    Started: [name for name in Started.__slots__ if name not in _OPTIONAL],
    Result: [name for name in Result.__slots__ if name not in _OPTIONAL - {"fencing_token"}],
}
