"""The example that runs seeds on a Dask cluster, on loopback."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (extra dask): NOTHING WAS SPREAD")

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep_on_dask.py"


@pytest.mark.slow
@pytest.mark.sim
def test_seeds_are_run_by_the_workers_of_a_cluster() -> None:
    """All of them, and each gives what it gives here."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "6"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 seeds, ")
    assert done.stdout.endswith(" events, 0 failed\n")
