"""What the recipe says while it works: log records with fields, and counters.

Loggers ``zabd.dedup.lock`` (one record for each transition of a lock znode) and
``zabd.dedup.record``. The names of events, fields and metrics are those of the dedup recipe,
section 13; the fields are attributes of the log record too.
"""

import hashlib
import json
import logging
from collections.abc import Mapping

from zabd.client.recipes.place import Place
from zabd.model.ids import format_session

LOCK_LOG = "zabd.dedup.lock"
RECORD_LOG = "zabd.dedup.record"

_lock_log = logging.getLogger(LOCK_LOG)
_record_log = logging.getLogger(RECORD_LOG)

_FIELDS = "dedup_fields"


class JsonFormatter(logging.Formatter):
    """Formats the recipe's records as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's fields, with time, level and logger."""
        fields: Mapping[str, object] = getattr(record, _FIELDS, {})
        head = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
        }
        rest = fields or {"message": record.getMessage()}
        return json.dumps({**head, **rest}, default=str)


class DedupLog:
    """The log of one key on one client; also hears of its lock znode (`TransitionLog`).

    `hide_key` logs a digest of the key in its place.
    """

    def __init__(self, key: str, parent: str, *, hide_key: bool = False) -> None:
        self._key = hashlib.sha256(key.encode()).hexdigest() if hide_key else key
        self._parent = "(hidden)" if hide_key else parent
        self._hide_key = hide_key
        self.fields: dict[str, object] = {}
        self._created_ms: int | None = None
        self._acquired_ms: int | None = None

    # Transitions of the lock znode.

    def created(self, place: Place) -> None:
        """The lock znode exists."""
        self._created_ms = place.client.now_ms()
        self._transition("created", place, fencing_token=place.token)

    def adopted(self, place: Place) -> None:
        """It was found again after a lost reply."""
        self.record("adopted", place)

    def orphan_deleted(self, place: Place, name: str) -> None:
        """A second one was found, and deleted."""
        self.record("orphan_deleted", place, orphan=name)

    def watch_fired(self, place: Place, predecessor: str) -> None:
        """The one before it has changed or gone."""
        self._transition("watch_fired", place, predecessor=predecessor)

    def acquired(self, place: Place) -> None:
        """The key is ours."""
        self._acquired_ms = place.client.now_ms()
        self._transition(
            "acquired", place, fencing_token=place.token, waited_ms=self._since(self._created_ms)
        )

    def released(self, place: Place, outcome: str) -> None:
        """The lock znode is deleted."""
        self._transition(
            "released", place, outcome=outcome, held_ms=self._since(self._acquired_ms, place)
        )

    def session_expired(self, place: Place) -> None:
        """The session is over."""
        self._transition("session_expired", place, held_ms=self._since(self._acquired_ms, place))

    # Events of the records.

    def record(self, event: str, place: Place | None = None, **fields: object) -> None:
        """Something happened to `started` or `result`."""
        session = format_session(place.session_id) if place and place.session_id else None
        self._emit(
            _record_log, {"record_event": event, "session_id": session, **self.fields, **fields}
        )

    def unchecked(self, where: str) -> None:
        """One of two payloads was not given, so they were not compared."""
        _record_log.info("%s: no payload to compare with that of %s", self._key, where)

    def _since(self, then_ms: int | None, place: Place | None = None) -> int | None:
        now_ms = place.client.now_ms() if place else self._acquired_ms
        return None if then_ms is None or now_ms is None else now_ms - then_ms

    def _transition(self, event: str, place: Place, **fields: object) -> None:
        path = "(hidden)" if self._hide_key else place.path
        known = {
            "event": event,
            "znode_path": path,
            "session_id": format_session(place.session_id),
            "sequence": place.sequence,
            **self.fields,
        }
        self._emit(_lock_log, {**known, **fields})

    def _emit(self, logger: logging.Logger, fields: dict[str, object]) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        said = {"idempotency_key": self._key, "znode_path": self._parent, **fields}
        said = {name: value for name, value in said.items() if value is not None}
        event = said.get("event") or said.get("record_event")
        logger.info("%s %s", event, said["znode_path"], extra={**said, _FIELDS: said})
