"""The demo, smaller: it passes, and however it ends it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ensemble.harness import wait_until

from zabd.cli.members import clean_environment

pytestmark = pytest.mark.ensemble

DEMO = [sys.executable, "-c", "from zabd.cli.ctl import main; main()", "demo"]
SMALL = ["--keys", "60", "--copies", "3", "--workers", "4"]


def environment(folder: Path) -> dict[str, str]:
    """Temporary files go where the test can look for them."""
    return {**clean_environment(), "TMPDIR": str(folder)}


def processes_below(folder: Path) -> list[str]:
    """Command lines or working sets that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in variables.split(b"\0"):
            found.append((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
    return found


def test_the_small_demo_passes(tmp_path: Path) -> None:
    """Every claim of the verdict holds, and nothing is left, neither process nor file."""
    ended = subprocess.run(
        [*DEMO, *SMALL, "--json"],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=100,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["passed"]
    assert [c["text"] for c in verdict["claims"] if c["holds"] is False] == []
    wait_until(lambda: not processes_below(tmp_path), "all processes to end")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, and an end that runs no code of ours: the reaper's case."""
    with subprocess.Popen(
        [*DEMO, *SMALL], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "workers take" in line:
                break
        assert len(processes_below(tmp_path)) >= 4
        demo.send_signal(number)
        demo.wait(20)

    wait_until(lambda: not processes_below(tmp_path), "all processes to end")
    if number is not signal.SIGKILL:
        assert demo.returncode == 130
        assert list(tmp_path.iterdir()) == []
