"""The member's log: one event is one line, logfmt or JSON, on one stream.

Invariants
    I1  An event is exactly one line of printable ASCII, whatever a client put into its fields.
    I2  Every line carries the member, and where it is known the state, epoch and zxid it stands at.

A line never waits: it is one write to a stream that the daemon owns.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from zabd.server.clock import Clock, utc_text

VALUE_CHARACTERS_MAX: Final = 2_000  # a path may have a million; a line stays readable

Trace = Callable[[str, Mapping[str, object]], None]


class EventLog:
    """Writes events as lines; `trace` is what the other rooms are given."""

    def __init__(self, stream: TextIO, clock: Clock, *, member: int, as_json: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._member = member
        self._render = _json_line if as_json else _logfmt_line
        self.standing: Callable[[], Mapping[str, object]] = dict
        """Asked for the state, epoch and zxid of each line."""

    def trace(self, event: str, fields: Mapping[str, object]) -> None:
        """One event with its fields; `level` among them is info unless said."""
        values: dict[str, object] = {
            "ts": utc_text(self._clock.wall_ms()),
            "level": "info",
            "event": event,
            "member": self._member,
            **self.standing(),
            **fields,
        }
        self._stream.write(self._render(values) + "\n")
        self._stream.flush()


def _logfmt_line(values: Mapping[str, object]) -> str:
    return " ".join(f"{_key(key)}={_logfmt_value(value)}" for key, value in values.items())


def _key(key: str) -> str:
    return "".join(char if char.isascii() and char.isidentifier() else "_" for char in key)


_NEEDS_QUOTES = frozenset(" \"'=\\")


def _logfmt_value(value: object) -> str:
    text = _text(value)
    plain = text and text.isascii() and text.isprintable() and not set(text) & _NEEDS_QUOTES
    return text if plain else json.dumps(text)


def _json_line(values: Mapping[str, object]) -> str:
    return json.dumps(
        {
            key: value if isinstance(value, bool) or type(value) is int else _text(value)
            for key, value in values.items()
        }
    )


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case bytes():
            text = value.hex()
        case float():
            return f"{value:.3f}"
        case str():
            text = value
        case _:
            # Zxids and other values of ours: repr is how transcripts show them.
            text = repr(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}...({len(text)} characters)"
