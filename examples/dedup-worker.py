"""A worker of the runbook: handles one request once, however many workers are given it.

    python examples/dedup-worker.py HOSTS KEY PAYLOAD SECONDS EFFECTS

Its work is to append a line with the fencing token to the file EFFECTS, wait, and append another
one, so that a look at the file shows who worked when. Transitions go to standard error, as JSON.
"""

import asyncio
import logging
import sys
from pathlib import Path

from zabd.client import connect
from zabd.client.recipes.dedup import Attempt, Dedup, DedupError, JsonFormatter

SESSION_TIMEOUT_S = 12.0


def log_to_stderr() -> None:
    """One JSON object a line: created, watch_fired, acquired, released, session_expired."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("zabd.dedup")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def note(effects: str, line: str) -> None:
    """The effect: what a resource would have been asked to do."""
    with Path(effects).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


async def main(hosts: str, key: str, payload: str, seconds: str, effects: str) -> int:
    """Handle the request; 0 when its outcome is known, 75 when it is to be tried again."""

    async def handle(attempt: Attempt) -> str:
        note(effects, f"begun token={attempt.fencing_token}")
        await asyncio.sleep(float(seconds))
        note(effects, f"done token={attempt.fencing_token}")
        return "done"

    async with connect(hosts, timeout=SESSION_TIMEOUT_S) as zk:
        try:
            outcome = await Dedup(zk, acquire_timeout=120.0).run(
                key, handle, payload=payload.encode()
            )
        except DedupError as error:
            print(error, file=sys.stderr, flush=True)
            return 75
    print(f"{outcome.value} replayed={outcome.replayed} token={outcome.fencing_token}", flush=True)
    return 0


if __name__ == "__main__":
    log_to_stderr()
    sys.exit(asyncio.run(main(*sys.argv[1:])))
