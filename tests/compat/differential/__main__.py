"""The same requests to ZooKeeper and to zabd: is every answer and every event the same?"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, closing

from tests.compat.differential import script as s
from tests.compat.differential.differences import INTENDED, WITHOUT_RULE
from tests.compat.differential.generator import generate
from tests.compat.differential.player import Stage
from tests.compat.differential.run import Duel, Found, Statistics
from tests.compat.differential.servers import (
    SUPER_PASSWORD,
    is_installed,
    java_server,
    zabd_server,
)
from tests.compat.differential.targets import ReplicaTarget, Target, TcpTarget

from zabd.model import make_digest_id

SUPER_DIGEST = make_digest_id(*SUPER_PASSWORD.split(":"))

TARGETS = "java, zabd, replica (in this process), ensemble (three of them)"


def main() -> int:
    """0 if no difference was found that is not intended, 1 if one was, 2 if nothing was done."""
    options = _options()
    if "java" in (options.reference, options.target) and not is_installed():
        print("NOT DONE: Debian's ZooKeeper (package zookeeper) is not installed", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        several = "ensemble" in (options.reference, options.target)
        left, right = [
            stack.enter_context(
                closing(
                    Stage(_target(name, stack), SUPER_PASSWORD.encode(), hangs_up_first=several)
                )
            )
            for name in (options.reference, options.target)
        ]
        only_left_logs_checks = options.reference == "java" != options.target
        return _run(Duel(left, right, only_left_logs_checks=only_left_logs_checks), options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    parser.add_argument("-n", type=int, default=2000, help="how many scripts")
    parser.add_argument("--first", type=int, default=0, help="the number of the first script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", default="java", help="the same")
    parser.add_argument("--target", default="replica", help=f"one of {TARGETS} or host:port")
    parser.add_argument("--differences", type=int, default=1, help="stop after so many")
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args()


def _target(name: str, stack: ExitStack) -> Target:
    if name == "java":
        return TcpTarget(*stack.enter_context(java_server(SUPER_DIGEST)))
    if name == "zabd":
        return TcpTarget(*stack.enter_context(zabd_server(SUPER_DIGEST)))
    if name == "replica":
        return ReplicaTarget(SUPER_DIGEST)
    if name == "ensemble":
        return ReplicaTarget(SUPER_DIGEST, voters=3)
    host, _, port = name.rpartition(":")
    return TcpTarget(host, int(port))


def _run(duel: Duel, options: argparse.Namespace) -> int:
    started = time.monotonic()
    kinds: set[str] = set()
    for number in range(options.first, options.first + options.n):
        script = generate(options.seed, number)
        found = duel.play(script)
        if found is not None and found.difference.kind not in kinds:
            kinds.add(found.difference.kind)
            _clear_line()
            smallest = script if options.no_shrink else duel.shrink(script, found)
            _report(options.seed, number, duel.play(smallest, count=False) or found, smallest)
            if len(kinds) >= options.differences:
                break
        _progress(duel.statistics, options.n, started)
    _clear_line()
    _summarise(duel.statistics, time.monotonic() - started)
    print(f"{len(kinds)} kinds of differences that are not intended" if kinds else "no difference")
    return 1 if kinds else 0


def _report(seed: int, number: int, found: Found, smallest: s.Script) -> None:
    print(f"--- seed {seed}, script {number}: {found.difference.kind}")
    print(found.difference.text)
    print(f"SCRIPT = {s.show(smallest)}", flush=True)


def _progress(statistics: Statistics, scripts: int, started: float) -> None:
    if not sys.stderr.isatty() and statistics.scripts % 200:
        return
    seconds = time.monotonic() - started
    done = statistics.scripts / scripts
    bar = "#" * int(done * 30)
    print(
        f"\r[{bar:30}] {statistics.scripts}/{scripts} scripts, {statistics.requests} requests, "
        f"{statistics.requests / seconds:.0f}/s ",
        end="" if sys.stderr.isatty() else "\n",
        file=sys.stderr,
        flush=True,
    )


def _clear_line() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _summarise(statistics: Statistics, seconds: float) -> None:
    print(
        f"{statistics.requests} requests in {statistics.scripts} scripts, {seconds:.0f} s, "
        f"{statistics.requests / max(seconds, 0.001):.0f} requests/s"
    )
    for title, counts in (
        ("requests", statistics.opcodes),
        ("error codes", statistics.errors),
        ("events", statistics.events),
    ):
        print(f"{title}: " + ", ".join(f"{word} {n}" for word, n in sorted(counts.items())))
    print("intended differences:")
    for rule in INTENDED:
        print(f"  {rule.name} ({statistics.intended[rule.name]}): {rule.reason}")
    for name, reason in WITHOUT_RULE.items():
        print(f"  {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
