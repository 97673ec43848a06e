"""What the recipe says while it works: log records with fields, and counters.

Loggers ``zabd.dedup.lock`` (one record for each transition of a lock znode) and
``zabd.dedup.record``. The names of events, fields and metrics are those of the dedup recipe,
section 13; the fields are attributes of the log record too.
"""

import hashlib
import json
import logging
from collections.abc import Mapping

from zabd.client.recipes.dedup.meter import DedupMeter
from zabd.client.recipes.place import Place
from zabd.model.ids import format_session

LOCK_LOG = "zabd.dedup.lock"
RECORD_LOG = "zabd.dedup.record"

_lock_log = logging.getLogger(LOCK_LOG)
_record_log = logging.getLogger(RECORD_LOG)

_FIELDS = "dedup_fields"
_HIDDEN = "(hidden)"


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

    `hide_key` logs a digest of the key in its place. `fields` go with every record from then on.
    """

    def __init__(self, key: str, parent: str, meter: DedupMeter, *, hide_key: bool = False) -> None:
        self.fields: dict[str, object] = {}
        self.shown_key = hashlib.sha256(key.encode()).hexdigest() if hide_key else key
        self.shown_parent = _HIDDEN if hide_key else parent
        self._parent = parent
        self._hide_key = hide_key
        self._meter = meter
        self._created_ms: int | None = None
        self._acquired_ms: int | None = None

    # Transitions of the lock znode.

    def created(self, place: Place) -> None:
        """The lock znode exists."""
        self._created_ms = place.client.now_ms()
        self._transition("created", place, fencing_token=place.token)

    def adopted(self, place: Place) -> None:
        """It was found again after a lost reply."""
        self._meter.lost_reply("create", "adopted")
        self.record("adopted", place)

    def resent(self, place: Place) -> None:
        """A create without an answer had not happened."""
        del place
        self._meter.lost_reply("create", "resent")

    def parent_missing(self, place: Place) -> None:
        """The key's znode has to be made, or made again."""
        del place
        self._meter.parent_missing()

    def orphan_deleted(self, place: Place, name: str) -> None:
        """A second one was found, and deleted."""
        self.record("orphan_deleted", place, orphan=name)

    def watch_fired(self, place: Place, predecessor: str) -> None:
        """The one before it has changed or gone."""
        self._transition("watch_fired", place, predecessor=predecessor)

    def acquired(self, place: Place) -> None:
        """The key is ours."""
        self._acquired_ms = place.client.now_ms()
        waited_ms = self._acquired_ms - (self._created_ms or self._acquired_ms)
        self._meter.waited(waited_ms)
        self._transition("acquired", place, fencing_token=place.token, waited_ms=waited_ms)

    def released(self, place: Place, outcome: str) -> None:
        """The lock znode is deleted."""
        self._transition("released", place, outcome=outcome, held_ms=self._ended(place))

    def session_expired(self, place: Place) -> None:
        """The session is over."""
        self._transition("session_expired", place, held_ms=self._ended(place))

    def _ended(self, place: Place) -> int | None:
        self._meter.left(self._parent)
        self._meter.released()
        if self._acquired_ms is None:
            return None
        held_ms = place.client.now_ms() - self._acquired_ms
        self._meter.held(held_ms)
        return held_ms

    # Events of the records.

    def record(self, event: str, place: Place | None = None, **fields: object) -> None:
        """Something happened to `started` or `result`."""
        session = format_session(place.session_id) if place and place.session_id else None
        self._emit(
            _record_log, {"record_event": event, "session_id": session, **self.fields, **fields}
        )

    def unchecked(self, where: str) -> None:
        """One of two payloads was not given, so they were not compared."""
        _record_log.info("%s: no payload to compare with that of %s", self.shown_key, where)

    def _transition(self, event: str, place: Place, **fields: object) -> None:
        known = {
            "event": event,
            "znode_path": _HIDDEN if self._hide_key else place.path,
            "session_id": format_session(place.session_id),
            "sequence": place.sequence,
            **self.fields,
        }
        self._emit(_lock_log, {**known, **fields})

    def _emit(self, logger: logging.Logger, fields: dict[str, object]) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        said = {"idempotency_key": self.shown_key, "znode_path": self.shown_parent, **fields}
        said = {name: value for name, value in said.items() if value is not None}
        event = said.get("event") or said.get("record_event")
        logger.info("%s %s", event, said["znode_path"], extra={**said, _FIELDS: said})
