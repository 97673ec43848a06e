"""A connection whose client is gone ends, though nobody may ever say that it is gone."""

from tests.replica.harness import TICK_MS, Ensemble

from zabd.model.ops import Exists, Ping, SetData

TIMEOUT_MS = 2 * TICK_MS
STEP_MS = TICK_MS // 2


def test_the_connection_that_a_session_left_half_open_ends_with_its_watches() -> None:
    """The session lives on elsewhere, so its end never ends the connection."""
    ensemble = Ensemble()
    here, elsewhere = ensemble.followers
    old = ensemble.connect(here, TIMEOUT_MS)
    old.call(Exists("/w", watch=True))
    new = ensemble.connect(elsewhere, TIMEOUT_MS, old.session)

    for _ in range(0, TIMEOUT_MS + 2 * TICK_MS, STEP_MS):
        ensemble.pass_time(STEP_MS)
        new.send(Ping())

    assert old.closed
    assert len(ensemble.members[here].clients.watches) == 0
    assert not new.closed


def test_a_client_that_pings_stays() -> None:
    """It has nothing to say, and says that in time."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0], TIMEOUT_MS)

    for _ in range(10):
        ensemble.pass_time(2 * TIMEOUT_MS // 3)
        client.send(Ping())

    assert not client.closed


def test_a_client_that_is_not_read_is_not_silent() -> None:
    """What it says waits in its kernel, and is heard once there is room."""
    ensemble = Ensemble(outstanding_max=2)
    follower = ensemble.followers[0]
    client = ensemble.connect(follower, TIMEOUT_MS)
    client.send(*[SetData("/", b"x")] * 3)
    assert client.paused

    for _ in range(0, TIMEOUT_MS + 2 * TICK_MS, STEP_MS):
        ensemble.now_ms += STEP_MS
        ensemble.elapse(follower)
    ensemble.settle()
    ensemble.elapse(follower)

    assert not client.paused
    assert not client.closed


def test_a_member_that_stood_still_blames_nobody_for_its_silence() -> None:
    """What clients said meanwhile is read behind its first look at the clock."""
    ensemble = Ensemble(1)
    client = ensemble.connect(1, TIMEOUT_MS)
    ensemble.pass_time(STEP_MS)

    ensemble.now_ms += 10 * TIMEOUT_MS
    ensemble.elapse(1)
    client.send(Ping())
    ensemble.pass_time(TIMEOUT_MS - 1)

    assert not client.closed
