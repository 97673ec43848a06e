"""Every member dies at the same moment, under load: acknowledged means on a quorum's disks."""

import signal

import pytest
from tests.ensemble.harness import BackgroundWriter

from zabd.cli.members import Ensemble

pytestmark = pytest.mark.ensemble


def lose_power(ensemble: Ensemble, turn: int) -> None:
    """SIGKILL everything while two writers write, start it all again, and look for each write."""
    with (
        BackgroundWriter(ensemble.hosts, f"/power-{turn}-a") as one,
        BackgroundWriter(ensemble.hosts, f"/power-{turn}-b") as two,
    ):
        one.wait_for_more(30)
        two.wait_for_more(30)
        for member in ensemble.members:
            member.send(signal.SIGKILL)
        for member in ensemble.members:
            member.wait()
        for member in ensemble.members:
            member.start()
        ensemble.wait_serving()
        one.stop()
        two.stop()
        for member in ensemble.members:
            assert one.missing_from(member) == []
            assert two.missing_from(member) == []


def test_everything_acknowledged_is_there_after_all_were_killed(ensemble: Ensemble) -> None:
    """Twice, so that the second start is on a directory that has been through the first."""
    lose_power(ensemble, 1)
    lose_power(ensemble, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_acknowledged_is_there_after_ten_times(ensemble: Ensemble) -> None:
    """The same ensemble and the same directories throughout."""
    for turn in range(10):
        lose_power(ensemble, turn)
