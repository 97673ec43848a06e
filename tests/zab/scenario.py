"""Scenarios as text: commands to a small world, and its narration as transcript.

ensemble 3 observers=1 seed=1      the shape, and the fixed latency and disk time in ms
start 1 2 | start                  these members, or all
crash 1 | restart 1 | wipe 1       keep=N of the operations on their way to the disk survive
found_anew 3                       restart it to found a new cluster with its history
damage 1 keep=2                    all but its first two batches are lost, with its promises
purge 1                            the log keeps only what no snapshot holds
part 1 2 / 3 | heal | cut 1 2      partitions, and links
mute 1 2                           messages between both are lost, and nobody is told
stall 1 | resume 1                 a disk that does not answer
submit NAME [count]                to the serving leader
confirm 1                          ask a leader to prove that it leads
elect 1 of 2 3                     in place of an election: these take 1 for their leader
run MS | until serving | until leader | until reached ZXID
"""

from dataclasses import replace

from tests.zab.harness import Shape, World, stable

SENTENCES = {
    "looks": "looks for a leader: {reason}",
    "epoch": "proposes epoch {epoch}, greater than all of {of}",
    "diff": "sends {learner} what comes after {from}",
    "trunc": "tells {learner} to cut back to {to}",
    "snap": "sends {learner} a snapshot",
    "drops": "drops {learner}: {reason}",
    "synced": "has {learner} in step at {zxid}",
    "established": "is established in epoch {epoch} by {by}",
    "crashes": "crashes",
    "damaged": "is damaged: {told}",
    "waits_for_repair": "says that no leader can be elected without {members}",
    "foreign_member": "takes {other} for a member of another cluster",
    "founds_nothing": "founds nothing: others have a history or a cluster, {members}",
    "restarts": "restarts",
    "refuses": "refuses a message: {told}",
    "delivers": "delivers {told}",
    "proposes": "proposes {told}",
    "acks": "acknowledges {told}",
    "confirms": "has proved that it leads",
}


class Scenario:
    """One world, and what was told of it."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.lines: list[str] = []

    def play(self, text: str) -> str:
        for line in text.strip().splitlines():
            if line.startswith("#"):
                continue
            for command in line.split(";"):
                words = command.split()
                if words:
                    self._do(words[0], words[1:])
        return "\n".join(self.lines) + "\n"

    def _do(self, verb: str, words: list[str]) -> None:
        if verb == "ensemble":
            self._build(words)
            return
        world = self.world
        assert world is not None, "a scenario begins with its ensemble"
        options = {w.partition("=")[0]: int(w.partition("=")[2]) for w in words if "=" in w}
        plain = [word for word in words if "=" not in word]
        match verb:
            case "start":
                world.start(*map(int, plain))
            case "crash":
                for word in plain:
                    world.crash(int(word), options.get("keep", 0))
            case "restart":
                for word in plain:
                    world.restart(int(word))
            case "found_anew":
                world.restart(int(plain[0]), founds_anew=True)
            case "wipe":
                world.wipe(int(plain[0]))
            case "damage":
                world.damage(int(plain[0]), options["keep"], forgets=True)
            case "purge":
                world.purge(int(plain[0]))
            case "part":
                groups = " ".join(plain).split("/")
                world.part(*(tuple(map(int, group.split())) for group in groups))
            case "heal":
                world.heal()
            case "cut":
                world.cut(int(plain[0]), int(plain[1]))
            case "mute":
                world.mute(int(plain[0]), int(plain[1]))
            case "stall" | "resume":
                world.stall_disk(int(plain[0]), stalled=verb == "stall")
            case "submit":
                count = int(plain[1]) if len(plain) > 1 else 1
                assert world.submit(plain[0].encode(), count) is not None, world.describe()
            case "confirm":
                assert world.confirm(int(plain[0])) is not None
            case "elect":
                world.elect(int(plain[0]), *map(int, plain[2:]))
            case "begin":
                self.lines.clear()
            case "run":
                world.run(int(plain[0]))
            case "until":
                self._until(plain)
            case _:
                raise AssertionError(f"no such command: {verb}")

    def _build(self, words: list[str]) -> None:
        options = {key: int(value) for key, _, value in (w.partition("=") for w in words[1:])}
        latency, disk = options.pop("latency", 1), options.pop("disk", 2)
        seed = options.pop("seed", 1)
        if "new_cluster" in options:
            options["new_cluster"] = bool(options["new_cluster"])
        shape = Shape(voters=int(words[0]), latency_ms=(latency, latency), disk_ms=(disk, disk))
        self.world = World(seed, replace(shape, **options), self._narrate)  # type: ignore[arg-type]

    def _until(self, words: list[str]) -> None:
        world = self.world
        assert world is not None
        match words:
            case ["serving"]:
                world.run_until(lambda: stable(world))
            case ["leader"]:
                world.run_until(lambda: world.leader() is not None)
            case ["led", number]:
                world.run_until(lambda: world.members[int(number)].leads)
            case ["delivered", count]:
                world.run_until(lambda: len(world.ledger) >= int(count))
            case _:
                raise AssertionError(f"until what? {words}")

    def _narrate(self, member: int, name: str, facts: dict[str, object]) -> None:
        world = self.world
        now_ms = world.now_ms if world is not None else 0
        sentence = self._sentence(name, facts)
        if sentence:
            self.lines.append(f"[{now_ms:4}] {member} {sentence}")

    def _sentence(self, name: str, facts: dict[str, object]) -> str:
        if name == "votes":
            if facts["leader"] is None:
                return f"has no vote in round {facts['round']}"
            return f"votes for {facts['leader']} at {facts['zxid']} in round {facts['round']}"
        if name == "looking":
            return ""
        if name in ("following", "observing", "leading"):
            whom = "" if name == "leading" else f" {facts['leader']}"
            serving = ", serves" if facts["serving"] else ""
            return f"{name}{whom}: {facts['phase']} in epoch {facts['epoch']}{serving}"
        return SENTENCES[name].format(**facts)
