"""What a scenario's program says to the test that started it, and hears from it.

The program runs in a process of its own, perhaps in a Python that has none of our packages, so this
module needs the standard library only. It says ``step NAME`` when a step is done and
``session 0x...`` when the member it is connected to may be killed; ``killed`` is the answer.
"""

import queue
import sys
from typing import NoReturn

PATIENCE_S = 40.0


def done(step: str) -> None:
    """This step's claims all held."""
    _say(f"step {step}")


def lose_member(session_id: int) -> None:
    """Wait until the member that has this session is dead and `/watched` has changed."""
    _say(f"session {session_id & (1 << 64) - 1:#x}")
    answer = sys.stdin.readline().strip()
    expect(answer, "killed")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def expect(found: object, wanted: object) -> None:
    """Fail unless the two are equal."""
    if found != wanted:
        fail(f"expected {wanted!r}, found {found!r}")


def fail(sentence: str) -> NoReturn:
    """End the scenario: a claim does not hold."""
    raise AssertionError(sentence)


def take(events: "queue.Queue[tuple[int, str]]") -> tuple[int, str]:
    """The next watch event, as type and path."""
    try:
        return events.get(timeout=PATIENCE_S)
    except queue.Empty:
        fail("waited in vain for a watch event")
