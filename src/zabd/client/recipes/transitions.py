"""What a lock or an election says while it works: one log record for each transition of a znode.

The events are those of the dedup recipe, section 13: created, watch_fired*, acquired?, then exactly
one of released and session_expired; adopted and orphan_deleted tell of lost replies that were
settled. Fields are attributes of the log record: event, znode_path, session_id, and what the event
adds.
"""

import logging

from zabd.client.recipes.place import Place
from zabd.model.ids import format_session


class PlaceLog:
    """Tells a logger of one place."""

    def __init__(self, logger: logging.Logger, path: str) -> None:
        self._logger = logger
        self._path = path
        self._created_ms = 0
        self._acquired_ms: int | None = None

    def created(self, place: Place) -> None:
        """The znode exists."""
        self._created_ms = place.client.now_ms()
        self._log("created", place)

    def adopted(self, place: Place) -> None:
        """It was found again after a lost reply."""
        self._log("adopted", place)

    def orphan_deleted(self, place: Place, name: str) -> None:
        """A second one was found, and deleted."""
        self._log("orphan_deleted", place, orphan=name)

    def resent(self, place: Place) -> None:
        """A create without an answer had not happened: there is no znode to tell of yet."""

    def parent_missing(self, place: Place) -> None:
        """The first one to queue makes the parent."""

    def watch_fired(self, place: Place, predecessor: str) -> None:
        """The one before it has changed or gone."""
        self._log("watch_fired", place, predecessor=predecessor)

    def acquired(self, place: Place) -> None:
        """Nobody is ahead."""
        self._acquired_ms = place.client.now_ms()
        waited_ms = self._acquired_ms - self._created_ms
        self._log("acquired", place, fencing_token=place.token, waited_ms=waited_ms)

    def released(self, place: Place, outcome: str) -> None:
        """The znode is deleted."""
        self._log("released", place, outcome=outcome, held_ms=self._held_ms(place))

    def session_expired(self, place: Place) -> None:
        """The session is over."""
        self._log("session_expired", place, held_ms=self._held_ms(place))

    def _held_ms(self, place: Place) -> int | None:
        return None if self._acquired_ms is None else place.client.now_ms() - self._acquired_ms

    def _log(self, event: str, place: Place, **fields: object) -> None:
        extra = {
            "event": event,
            "lock_path": self._path,
            "znode_path": place.path,
            "session_id": format_session(place.session_id),
            "sequence": place.sequence,
            **{name: value for name, value in fields.items() if value is not None},
        }
        self._logger.info("%s %s", event, place.path, extra=extra)
