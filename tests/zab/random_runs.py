"""One random life of an ensemble: a seed draws its shape and its faults; then it must recover."""

import random

from tests.zab.harness import Shape, World, stable


def draw_shape(chance: random.Random) -> Shape:
    """How large, how far apart, how slow, how unlucky."""
    return Shape(
        voters=chance.choice([1, 2, 3, 3, 3, 4, 5, 5]),
        observers=chance.choice([0, 0, 0, 1, 2]),
        latency_ms=chance.choice([(0, 0), (0, 3), (1, 40)]),
        disk_ms=chance.choice([(0, 0), (0, 4), (1, 60)]),
        notification_loss=chance.choice([0, 0, 0.1, 0.4]),
        half_open=chance.choice([0, 0, 0.5]),
    )


class Life:
    """A founding, then faults and batches in random order, then peace."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed, draw_shape(self.chance))
        self.adversarial = self.chance.random() < 0.3
        self.crash_in_step = self.chance.choice([0, 0, 0.002, 0.02])
        self.submitted = 0

    def live(self, steps: int = 30) -> World:
        """Safety is checked all the time; that the ensemble comes back, at the end."""
        world = self.world
        world.start()
        world.run_until(lambda: stable(world), 60_000)
        world.shape.crash_in_step = self.crash_in_step
        for _ in range(steps):
            self._happen()
            world.run(self.chance.choice([0, 1, 3, 10, 10, 50, 200, 1000]))
        self._make_peace()
        return world

    def _happen(self) -> None:
        world, chance = self.world, self.chance
        one = chance.choice([*world.members])
        faults = {
            "submit": 50,
            "confirm": 4,
            "elect": 10,
            "crash": 8,
            "restart": 18,
            "cut": 5,
            "part": 3,
            "heal": 4,
            "purge": 3,
            "stall": 2,
            "wipe": 2,
            "damage": 3,
            "crash all": 2,
        }
        match chance.choices([*faults], [*faults.values()])[0]:
            case "submit":
                for _ in range(chance.randint(1, 4)):
                    self.submitted += 1
                    world.submit(b"batch %d" % self.submitted, chance.choice([1, 1, 3]))
            case "confirm":
                world.confirm(one)
            case "elect":
                self._elect()
            case "crash":
                world.crash(one)
            case "restart":
                world.restart(one)
            case "cut":
                world.cut(one, chance.choice([*world.members]))
            case "part":
                shuffled = chance.sample([*world.members], len(world.members))
                size = chance.randint(0, len(shuffled))
                world.heal()
                world.part(tuple(shuffled[:size]), tuple(shuffled[size:]))
            case "heal":
                world.heal()
            case "purge":
                world.purge(one)
            case "stall":
                world.stall_disk(one, stalled=chance.random() < 0.5)
            case "wipe":
                self._wipe(one)
            case "damage":
                self._damage(one)
            case "crash all":
                for number in world.members:
                    world.crash(number)

    def _elect(self) -> None:
        """Safety does not rest on elections: name leaders at random."""
        if not self.adversarial:
            return
        self.world.elect(self.chance.choice(self.world.voters))

    def _wipe(self, number: int) -> None:
        """A minority may lose its disks; more is beyond what any ensemble survives."""
        if self._may_be_hurt(number):
            self.world.wipe(number)

    def _damage(self, number: int) -> None:
        """Nor of those that can vouch only for a part of what they had."""
        chance, store = self.chance, self.world.members[number].store
        if self._may_be_hurt(number) and store.cluster_id is not None:
            keep = chance.randint(0, len(store.history))
            self.world.damage(number, keep, forgets=chance.random() < 0.5)

    def _may_be_hurt(self, number: int) -> bool:
        world = self.world
        stores = {n: world.members[n].store for n in world.voters}
        hurt = [n for n, s in stores.items() if s.cluster_id is None or s.damaged]
        spare = number not in stores or len({*hurt, number}) <= (len(stores) - 1) // 2
        return world.members[number].peer is None and spare

    def _make_peace(self) -> None:
        world = self.world
        world.heal()
        world.shape.crash_in_step = world.shape.notification_loss = 0
        for number in world.members:
            world.stall_disk(number, stalled=False)
            world.restart(number)
        world.run_until(lambda: stable(world), 60_000)
        world.submit(b"the last batch")
        world.run_until(lambda: stable(world), 10_000)
        world.check_agreement()
        assert "refuses" not in world.fired, "peers of one make never misbehave"
