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
