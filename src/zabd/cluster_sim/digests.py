"""Run seeds and print the digest of each trace: what is started twice to compare two interpreters.

    python -m zabd.cluster_sim.digests LEVEL STRATEGY SEED...

A line for each seed, in the order given: the seed, the digest, and the check that failed, or "-".
"""

import sys
from collections.abc import Sequence

from zabd.cluster_sim.sweep import run_seed


def main(arguments: Sequence[str]) -> None:
    """Run them."""
    level, strategy, *seeds = arguments
    for seed in map(int, seeds):
        outcome = run_seed(seed, level, strategy=strategy)
        check = "-" if outcome.failure is None else outcome.failure.id
        sys.stdout.write(f"{seed} {outcome.digest} {check}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
