"""Members killed, frozen and restarted at random under load: nothing acknowledged is lost."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, serving, wait_until

from zabd.cli.members import Ensemble, Member

pytestmark = pytest.mark.ensemble

# Ticks of 200 ms make elections after a freeze quick; a snapshot every 300 txns makes many.
SETTINGS = {
    "tickTime": "200",
    "syncLimit": "5",
    "maxSessionTimeout": "20000",
    "snapCount": "300",
}


def disturb(ensemble: Ensemble, rng: random.Random, seconds: float) -> None:
    """Do things to members for so long, then bring all of them back."""
    gone: dict[Member, None] = {}
    frozen: dict[Member, None] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(0.05, 1.2))
        member = rng.choice(ensemble.members)
        if member in gone:
            del gone[member]
            member.start()
        elif member in frozen:
            del frozen[member]
            member.resume()
        elif (what := rng.choice(["kill", "kill", "freeze", "terminate"])) == "freeze":
            frozen[member] = None
            member.stop()
        else:
            gone[member] = None
            member.kill() if what == "kill" else member.terminate()
    for member in frozen:
        member.resume()
    for member in gone:
        member.start()


def torture(folder: Path, seed: int, seconds: float, *, voters: int) -> int:
    """Three writers, a disturbed ensemble, then the reckoning; how many acknowledged writes."""
    with serving(folder, voters=voters, settings=SETTINGS) as ensemble, ExitStack() as stack:
        writers = [
            stack.enter_context(BackgroundWriter(ensemble.hosts, f"/writer-{number}"))
            for number in range(3)
        ]
        disturb(ensemble, random.Random(seed), seconds)
        assert [member.id for member in ensemble.members if not member.running] == []
        ensemble.wait_serving(timeout_s=60)
        for writer in writers:
            writer.wait_for_more()
            writer.stop()
        for member in ensemble.members:
            assert [writer.missing_from(member) for writer in writers] == [[], [], []]
        wait_until(lambda: len(standings(ensemble)) == 1, "equal digests at one zxid")
        for member in ensemble.members:
            assert "Traceback" not in member.log.read_text(encoding="utf-8")
    return sum(len(writer.acknowledged) for writer in writers)


def standings(ensemble: Ensemble) -> set[tuple[int | None, str]]:
    """Where the members stand, with the digests of their trees."""
    statuses = [member.status() for member in ensemble.members]
    return {(status.zxid, status.keys["zk_zabd_tree_digest"]) for status in statuses}


def test_a_short_while(tmp_path: Path) -> None:
    """The same faults each time."""
    torture(tmp_path, seed=1, seconds=4, voters=3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("voters", [3, 5])
def test_a_long_while(tmp_path: Path, voters: int, record_property: object) -> None:
    """Other faults each time; the seed is among the figures."""
    seed = random.SystemRandom().randrange(1_000_000)
    assert callable(record_property)
    record_property("seed", seed)
    record_property("acknowledged", torture(tmp_path, seed, 60, voters=voters))
