"""`zabctl bench` counts what was answered, and says when a server does not answer as it should."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from zabd.cli.load import Load, LoadError, remove
from zabd.cli.members import Ensemble

BENCH = [str(Path(sys.executable).parent / "zabctl"), "bench"]


@pytest.mark.ensemble
@pytest.mark.slow
def test_a_bench_of_its_own_members_measures_every_op(tmp_path: Path) -> None:
    """No host is named: members are started, measured with their CPU, and gone afterwards."""
    out = tmp_path / "figures"
    quick = [
        "--members",
        "1",
        "--cell",
        "2x4",
        "--seconds",
        "0.5",
        "--warmup",
        "0.1",
        "--runs",
        "1",
    ]
    done = subprocess.run(
        [*BENCH, *quick, "--out", str(out)], capture_output=True, text=True, timeout=90, check=True
    )

    rows = json.loads((out / "bench.json").read_text(encoding="utf-8"))["rows"]
    assert [row["op"] for row in rows] == ["get", "set", "create", "mixed:0.9"]
    assert all(row["ops_per_s"] > 0 and row["errors"] == 0 for row in rows)
    assert all(row["cpu_us_per_op"] is not None for row in rows)
    assert done.stdout.startswith("OP")
    assert "| mixed:0.9 | 2x4 |" in (out / "README.md").read_text(encoding="utf-8")
    assert len(list(out.glob("bench-*.svg"))) == 3


@pytest.mark.ensemble
@pytest.mark.slow
def test_a_load_leaves_nothing_behind(tmp_path: Path) -> None:
    """What was created for it is removed, however much it is."""
    with Ensemble(tmp_path, voters=1) as ensemble:
        ensemble.start()
        before = ensemble.members[0].status().number("znode_count")
        host = ("127.0.0.1", ensemble.members[0].client_port)
        load = Load([host], "create", connections=2, window=8, size_bytes=10, root="/load")
        assert load.measure(0.3).errors == 0
        load.close()
        remove(host, "/load")
        assert ensemble.members[0].status().number("znode_count") == before


def test_the_paper_is_measured_on_members_of_its_own() -> None:
    """Servers that run already are not killed for a picture."""
    done = subprocess.run(
        [*BENCH, "127.0.0.1:1", "--paper"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "leave HOSTS out" in done.stderr


def test_a_server_that_hangs_up_is_an_error_in_words() -> None:
    """Whatever listens there, the command ends with a sentence."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=hang_up_on_one, args=[listener], daemon=True).start()
        with pytest.raises((LoadError, ConnectionError)):
            Load([("127.0.0.1", port)], "get", connections=1, window=1, size_bytes=1, root="/x")


def hang_up_on_one(listener: socket.socket) -> None:
    """Accept a connection, and close it."""
    listener.accept()[0].close()
