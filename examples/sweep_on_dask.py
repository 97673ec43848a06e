"""Run seeds of the simulator on a Dask cluster: here three worker processes on this machine.

    pip install 'zabd[dask]'
    python examples/sweep_on_dask.py [SEEDS]

With the address of a scheduler in place of a LocalCluster, the same lines use other machines. One
thread in each worker: runs take turns within a process.
"""

import sys

from distributed import Client, LocalCluster

from zabd.cluster_sim import run_seeds


def main() -> None:
    """Run them, and say what they came to."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor()
        failed = events = 0
        for outcome in run_seeds(range(1, seeds + 1), "zab", executor=executor, workers=3):
            events += outcome.events
            if outcome.failure is not None:
                failed += 1
                print(f"seed {outcome.seed}: {outcome.failure}")
    print(f"{seeds} seeds, {events:,} events, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
