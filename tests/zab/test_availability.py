"""A leader dies: in whatever order the others hear of it, the next one is there in a moment."""

import pytest
from tests.zab.harness import Shape, World, stable

MOMENT_MS = 100
"""A few steps of 5 ms each, and of patience with who has not been heard."""

LOSSY_MS = 1_500
"""Below the init limit of 2 s all the same: nobody has waited in vain for anybody."""


@pytest.mark.parametrize("voters", [3, 4, 5, 7])
@pytest.mark.parametrize(("loss", "limit_ms"), [(0, MOMENT_MS), (0.2, LOSSY_MS)])
def test_the_next_leader_is_there_in_a_moment(voters: int, loss: float, limit_ms: int) -> None:
    """Votes, answers of followers and closed links of the dead leader cross each other."""
    took_ms = {}
    for seed in range(150):
        shape = Shape(voters=voters, latency_ms=(0, 5), disk_ms=(0, 2), notification_loss=loss)
        world = World(seed, shape)
        world.start()
        world.run_until(lambda: stable(world), 60_000)  # noqa: B023 - it is called here
        for _ in range(3):
            world.submit(b"x")
        world.run(seed % 7)
        leader = world.leader()
        assert leader is not None
        died_ms = world.now_ms
        world.crash(leader.number)
        world.run_until(lambda: world.leader() is not None, 60_000)  # noqa: B023 - as above
        took_ms[seed] = world.now_ms - died_ms

    assert {seed: ms for seed, ms in took_ms.items() if ms > limit_ms} == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_founding_anew_that_was_cut_short_can_be_asked_for_again(seed: int) -> None:
    """The blank members have got a part of the history, and belong to no cluster yet."""
    shape = Shape(voters=3, latency_ms=(1, 1), disk_ms=(2, 2))
    world = World(seed, shape)
    world.start()
    world.run_until(lambda: stable(world))
    for _ in range(5):
        world.submit(b"payload")
        world.run(20)
    world.run(500)
    for number in (1, 2, 3):
        world.crash(number)
    world.wipe(1)
    world.wipe(2)
    world.restart(1)
    world.restart(2)
    world.restart(3, founds_anew=True)
    stores = [world.members[number].store for number in (1, 2)]
    world.run_until(lambda: any(store.history for store in stores))
    world.crash(3)
    assert all(store.cluster_id is None for store in stores)

    world.restart(3, founds_anew=True)
    world.run_until(lambda: stable(world))

    leader = world.leader()
    assert leader is not None
    assert leader.number == 3
    assert len({member.store.cluster_id for member in world.members.values()}) == 1
