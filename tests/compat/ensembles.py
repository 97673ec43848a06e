"""The ensemble that somebody else's client is tried on: ours, or Debian's to prove the scenario.

``COMPAT_SERVER=java`` chooses Debian's ZooKeeper; everything else about a test stays as it is.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.compat import java_zookeeper
from tests.compat.tools import debian, needed

from zabd.cli.members import Ensemble, Member
from zabd.cli.words import ask

SERVER = os.environ.get("COMPAT_SERVER", "zabd")
START_TIMEOUT_S = 60.0  # three Java machines on a busy computer
# Containers and znodes with a time to live are looked at once a second, so that tests may wait.
SETTINGS = {"znode.container.checkIntervalMs": "1000", "4lw.commands.whitelist": "*"}


@contextlib.contextmanager
def ensemble_of_three(folder: Path) -> Iterator[Ensemble]:
    """Three members that serve."""
    command = None
    if SERVER == "java":
        needed(lambda: debian(*java_zookeeper.PACKAGES))
        command = [sys.executable, java_zookeeper.__file__]
    with Ensemble(folder, voters=3, settings=SETTINGS, command=command) as ensemble:
        ensemble.start(timeout_s=START_TIMEOUT_S)
        yield ensemble


def member_of(ensemble: Ensemble, session: str) -> Member:
    """The member that this session, as ``0x...``, is connected to."""
    for member in ensemble.running():
        if f"sid={session}," in ask("127.0.0.1", member.client_port, "cons"):
            return member
    raise AssertionError(f"no member has a connection of {session}\n{ensemble.logs()}")
