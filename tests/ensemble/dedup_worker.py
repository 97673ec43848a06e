"""A process that handles one request through the dedup recipe, and tells all about it.

    python dedup_worker.py HOSTS KEY SESSION_S SECONDS EFFECTS

Each step of its work is a line in EFFECTS; transitions are JSON lines on standard error, and the
page of metrics is printed at the end. Exit status 75: the session was lost.
"""

import asyncio
import logging
import sys
from pathlib import Path

from zabd.client import connect
from zabd.client.metrics import MemoryMetrics, exposition
from zabd.client.recipes.dedup import Attempt, Dedup, JsonFormatter, SessionLostError


def note(effects: str, line: str) -> None:
    """What a resource would have been asked to do."""
    with Path(effects).open("a", encoding="utf-8") as file:
        file.write(line)


async def main(hosts: str, key: str, session_s: str, seconds: str, effects: str) -> int:
    """Handle the request."""
    metrics = MemoryMetrics()

    async def handle(attempt: Attempt) -> int:
        loop = asyncio.get_running_loop()
        end = loop.time() + float(seconds)
        while loop.time() < end:
            note(effects, f"{attempt.fencing_token}\n")
            await asyncio.sleep(0.1)
        return attempt.fencing_token

    async with connect(hosts, timeout=float(session_s), metrics=metrics) as zk:
        try:
            outcome = await Dedup(zk, acquire_timeout=None).run(key, handle, payload=b"pay 7")
        except SessionLostError:
            status = 75
        else:
            status = 0 if outcome.replayed else 1
    sys.stdout.write(exposition(metrics))
    return status


if __name__ == "__main__":
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("zabd.dedup").setLevel(logging.INFO)
    sys.exit(asyncio.run(main(*sys.argv[1:])))
