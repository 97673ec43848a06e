"""Real members and real clients for the tests of this folder.

The members themselves are `zabd.cli.members`; here is what only tests need: words with the clients
they come from, programs that can be stopped as a whole, and a writer that remembers what was
acknowledged. ``ZABD_TEST_DAEMON`` names another daemon that takes ``--config FILE --id N``, which
is how a claim is tried on an ensemble of somebody else's.
"""

import asyncio
import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import pytest
from kazoo.client import KazooClient
from tests.compat import java_zookeeper
from tests.compat.tools import debian, needed

from zabd.cli.members import Ensemble, Member
from zabd.cli.writer import Writer, missing

OTHER_DAEMON = shlex.split(os.environ.get("ZABD_TEST_DAEMON", "")) or None
# The same claim on our members, and on Debian's ZooKeeper where that is installed.
BOTH = [
    "zabd",
    pytest.param("java", marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
]
JAVA_TIMEOUT_S = 60.0  # three Java machines on a busy computer
# A member's start, an election and a client's reconnection, on a machine that does other things.
PATIENCE_S = 30.0


def lay_out(
    folder: Path,
    *,
    voters: int = 3,
    observers: int = 0,
    settings: Mapping[str, str] | None = None,
    started: int | None = None,
) -> Ensemble:
    """An ensemble that is configured and not started."""
    return Ensemble(
        folder,
        voters=voters,
        observers=observers,
        settings=settings,
        command=OTHER_DAEMON,
        started=started,
    )


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    voters: int = 3,
    observers: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Ensemble]:
    """An ensemble all of whose members serve."""
    with lay_out(folder, voters=voters, observers=observers, settings=settings) as ensemble:
        ensemble.start()
        yield ensemble


@contextlib.contextmanager
def kazoo(hosts: str, *, timeout_s: float = 10.0, **options: object) -> Iterator[KazooClient]:
    """A kazoo client that is connected, and closed at the end."""
    client = KazooClient(hosts=hosts, timeout=timeout_s, **options)
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def serving_on(
    server: str, folder: Path, *, voters: int = 3, settings: Mapping[str, str] | None = None
) -> Iterator[Ensemble]:
    """An ensemble of one of `BOTH`; the test is skipped, loudly, where it is not installed."""
    if server == "zabd":
        with serving(folder, voters=voters, settings=settings) as ensemble:
            yield ensemble
        return
    needed(lambda: debian(*java_zookeeper.PACKAGES))
    command = [sys.executable, java_zookeeper.__file__]
    with Ensemble(folder, voters=voters, settings=settings, command=command) as ensemble:
        ensemble.start(timeout_s=JAVA_TIMEOUT_S)
        yield ensemble


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll a condition that another process makes true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.01)


class BackgroundWriter:
    """A `zabd.cli.writer.Writer` that runs in a thread of its own while a test does its worst."""

    def __init__(self, hosts: str, root: str = "/writer", **options: float) -> None:
        self.writer = Writer(hosts, root, **options)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def acknowledged(self) -> dict[str, bytes]:
        """What has been acknowledged."""
        return self.writer.acknowledged

    def wait_for_more(self, count: int = 1) -> None:
        """Wait for so many further acknowledgements."""
        wanted = len(self.writer.acknowledged_at) + count
        self._wait(lambda: len(self.writer.acknowledged_at) >= wanted, f"{count} acknowledgements")

    def wait_acknowledged_after(self, moment: float) -> float:
        """Wait for an acknowledgement after this moment (monotonic); the seconds it took."""
        self._wait(
            lambda: self.writer.first_acknowledged_after(moment) is not None, "an acknowledgement"
        )
        return self.writer.first_acknowledged_after(moment) or 0.0

    def stop(self) -> None:
        """Write no more, and wait until the last reply is in."""
        self.writer.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the writer hangs"

    def missing_from(self, member: Member) -> list[str]:
        """The acknowledged writes that this member does not show, after a sync."""
        return asyncio.run(missing(member.address, dict(self.acknowledged)))

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self._failure is not None, what)
        if self._failure is not None:
            raise AssertionError("the writer failed") from self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self.writer.run())
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._failure = error
