"""How long nobody's write is acknowledged when the leader dies.

    python bench/kill_leader.py [--kills 20] [--members 3] [--signal KILL|STOP] [--settings k=v ...]

A writer with one request in flight is connected to a member that survives. The leader gets the
signal; the figure is the time from then to the next acknowledgement. The member is then restarted
(or continued), and when it serves again the next leader's turn comes. At the end every acknowledged
write is read back from each member. Prints one line per kill, then a line of JSON.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from zabd.cli.members import Ensemble, Member
from zabd.cli.writer import Writer, missing

BACK_WITHIN_S = 180.0  # a million znodes are read from the disk first
SETTLE_WRITES = 20  # acknowledgements before each kill: the ensemble is busy at that moment


@dataclass(frozen=True)
class Kill:
    """One leader's end."""

    leader: int
    gap_ms: float  # from the signal to the next acknowledged write
    elected_ms: float  # from the signal until another member says that it leads
    unknown: int  # writes whose reply was lost


@contextmanager
def writing(hosts: str, root: str) -> Iterator[Writer]:
    """A writer in a thread, stopped at the end."""
    writer = Writer(hosts, root)
    thread = Thread(target=lambda: asyncio.run(writer.run()), daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        writer.stop()
        thread.join(60)


def kill_once(
    ensemble: Ensemble, number: signal.Signals, root: str, written: dict[str, bytes]
) -> Kill:
    """Send the leader a signal under load and measure; the ensemble is whole again afterwards.

    What was acknowledged, also by the leader after it was continued, is added to `written`.
    """
    leader = ensemble.wait_leader()
    survivor = next(m for m in ensemble.members if m is not leader)
    with (
        writing(survivor.address, f"{root}-a") as writer,
        writing(
            ensemble.hosts if number is signal.SIGKILL else leader.address, f"{root}-b"
        ) as other,
    ):
        ensemble.wait_for(lambda: len(writer.acknowledged) >= SETTLE_WRITES, "the writer")
        ensemble.wait_for(lambda: len(other.acknowledged) >= SETTLE_WRITES, "the other writer")
        sent = time.monotonic()
        leader.send(number)
        ensemble.wait_leader(other_than=leader)
        elected = time.monotonic() - sent
        ensemble.wait_for(
            lambda: writer.first_acknowledged_after(sent) is not None, "an acknowledged write"
        )
        gap = writer.first_acknowledged_after(sent) or 0.0
        _bring_back(ensemble, leader, number)
    written.update(writer.acknowledged)
    written.update(other.acknowledged)
    return Kill(leader.id, gap * 1000, elected * 1000, len(writer.unknown))


def lost_writes(ensemble: Ensemble, written: dict[str, bytes]) -> dict[int, list[str]]:
    """Acknowledged writes that are not there, by member."""
    return {m.id: asyncio.run(missing(m.address, written)) for m in ensemble.running()}


def _bring_back(ensemble: Ensemble, leader: Member, number: signal.Signals) -> None:
    if number is signal.SIGSTOP:
        leader.resume()
        # It still believes that it leads; it serves again once it follows.
        ensemble.wait_for(
            lambda: leader.mode() == "follower",
            f"member {leader.id} to follow",
            timeout_s=BACK_WITHIN_S,
        )
        return
    leader.wait()
    leader.start()
    ensemble.wait_serving([leader], timeout_s=BACK_WITHIN_S)


def main() -> int:
    """Run it, print the figures; 1 when a write was lost."""
    parser = argparse.ArgumentParser(description="Time without an acknowledged write.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--daemon", nargs="+", help="another daemon that takes --config and --id")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.settings)
    number = signal.Signals[f"SIG{options.signal}"]
    written: dict[str, bytes] = {}
    kills: list[Kill] = []
    with (
        tempfile.TemporaryDirectory(prefix="kill-leader-") as folder,
        Ensemble(
            Path(folder), voters=options.members, settings=settings, command=options.daemon
        ) as ensemble,
    ):
        ensemble.start()
        for turn in range(options.kills):
            kills.append(kill_once(ensemble, number, f"/turn-{turn}", written))
            print(kills[-1], flush=True)
        lost = lost_writes(ensemble, written)
    gaps = [kill.gap_ms for kill in kills]
    print(
        json.dumps(
            {
                "kills": len(kills),
                "gap_ms_median": round(statistics.median(gaps), 1),
                "gap_ms_max": round(max(gaps), 1),
                "elected_ms_median": round(statistics.median(k.elected_ms for k in kills), 1),
                "acknowledged": len(written),
                "lost": sum(map(len, lost.values())),
            }
        )
    )
    return 1 if any(lost.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
