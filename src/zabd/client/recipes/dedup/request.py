"""One caller's wish: a key, a payload's fingerprint, and the options that hold for this call."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from zabd.client.client import Client
from zabd.client.recipes.dedup.errors import (
    DedupError,
    DuplicateError,
    PayloadMismatchError,
    RecordUnreadableError,
    ReplayedFailureError,
)
from zabd.client.recipes.dedup.fingerprint import Fingerprint
from zabd.client.recipes.dedup.log import DedupLog
from zabd.client.recipes.dedup.meter import DedupMeter
from zabd.client.recipes.dedup.options import Options
from zabd.client.recipes.dedup.records import COMPLETED, FAILED, Result
from zabd.model.acl import Acl
from zabd.model.ids import SessionId

E = TypeVar("E", bound=DedupError)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; `parent` is the key's znode."""

    client: Client
    key: str
    parent: str
    fingerprint: Fingerprint
    options: Options
    log: DedupLog
    meter: DedupMeter

    @property
    def acl(self) -> tuple[Acl, ...]:
        """Who may read the records and contend for the key."""
        return self.client.default_acl if self.options.acl is None else self.options.acl

    def error(self, kind: type[E], message: str = "", *, session_id: SessionId = 0) -> E:
        """An error about this key."""
        return kind(
            f"{message or (kind.__doc__ or '').partition(chr(10))[0]} (key {self._shown_key})",
            key=self.key,
            znode_path=self.parent,
            session_id=session_id or self.client.session_id,
        )

    def compare(self, payload_hash: str | None, alg: str, where: str) -> None:
        """Raise PayloadMismatchError unless the fingerprint is ours; None on a side is no check."""
        ours = self.fingerprint
        if ours.hash is None or payload_hash is None:
            self.log.unchecked(where)
            return
        if alg != ours.alg:
            if self.options.allow_alg_upgrade:
                return
            raise self._mismatch(
                "alg", f"{where} was digested with {alg}, this call with {ours.alg}"
            )
        if payload_hash != ours.hash:
            raise self._mismatch("payload", f"{where} belongs to another payload")

    def settled_by(self, record: Result) -> bool:
        """Whether a recorded outcome ends this call; it may also raise, as the caller chose."""
        self.compare(record.payload_hash, record.alg, "the recorded outcome")
        if self.options.reuse == "reject":
            raise self.error(DuplicateError, "the key has an outcome already")
        return not (self.options.reuse == "rerun_failed" and record.status == FAILED)

    def value_of(self, record: Result) -> object:
        """The recorded value, or raise the recorded failure."""
        if record.status != COMPLETED:
            failure = record.error or {}
            error = self.error(
                ReplayedFailureError,
                f"the recorded outcome is {failure.get('type')}: {failure.get('message')}",
            )
            error.failure = failure
            raise error
        if record.omitted:
            return None
        codec = self.options.codec
        if record.codec != codec.name:
            raise self.error(
                RecordUnreadableError,
                f"the value was recorded with the codec {record.codec}, this call has {codec.name}",
            )
        return codec.decode(record.value)

    def span(self, name: str, **attrs: object) -> AbstractContextManager[object]:
        """The hook for tracing around a part of this call."""
        known = {"idempotency_key": self.log.shown_key, "znode_path": self.log.shown_parent}
        return self.client.meter.span(f"dedup.{name}", {**known, **attrs})

    def _mismatch(self, reason: str, message: str) -> PayloadMismatchError:
        self.log.record("mismatch", reason=reason)
        error = self.error(PayloadMismatchError, message)
        error.reason = reason
        return error

    @property
    def _shown_key(self) -> str:
        return "hidden" if self.options.log_key == "hash" else repr(self.key)
