"""aiozk brings its own tests in its package; they run against one member of three."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.compat.ensembles import ensemble_of_three
from tests.compat.tools import needed, python_with

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]

REQUIREMENTS = Path(__file__).parent / "clients" / "aiozk" / "requirements.txt"
SUITE_TIMEOUT_S = 600.0
# It gives four writes half a second, which says more about the disk than about the server.
LEFT_OUT = "test_timeout_accuracy"


def test_aiozk_passes_its_own_tests(tmp_path: Path) -> None:
    """Recipes that nobody here wrote, with containers for every step of their paths."""
    python = needed(lambda: python_with(REQUIREMENTS))
    with ensemble_of_three(tmp_path) as ensemble:
        member = ensemble.members[0]
        done = subprocess.run(
            [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider",
             "-o", "asyncio_mode=auto", "-k", f"not {LEFT_OUT}", "--pyargs", "aiozk.test"],
            cwd=tmp_path,
            env=os.environ | {"ZK_HOST": "127.0.0.1", "ZK_PORT": str(member.client_port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SUITE_TIMEOUT_S,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout[-8000:]
