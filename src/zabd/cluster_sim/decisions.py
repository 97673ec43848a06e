"""The faults of a run as a list: when, of what kind, and the chance that each has drawn.

A nemesis draws its faults from one stream, so a fault that is left out would change all later ones.
As a list each fault stands for itself: leaving one out leaves the others as they were.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from zabd.cluster_sim.faults import Nemesis
from zabd.cluster_sim.schedule import US_PER_MS

_FLOAT_BITS: Final = 53


class Decision(NamedTuple):
    """One fault: its instant, its kind, and what it drew (floats of `random`, or bits)."""

    at_us: int
    kind: str
    draws: tuple[float, ...]

    @classmethod
    def of(cls, told: Sequence[Any]) -> "Decision":
        """What JSON held."""
        at_us, kind, draws = told
        return cls(at_us, kind, tuple(draws))

    def __str__(self) -> str:
        return f"{self.at_us / US_PER_MS:.3f} ms {self.kind}"


class _Tape(Random):
    """A stream that writes down what it gives."""

    taken: list[float]

    def random(self) -> float:
        value = super().random()
        self.taken.append(value)
        return value

    def getrandbits(self, k: int, /) -> int:
        value = super().getrandbits(k)
        self.taken.append(value)
        return value


class _Replayed(Random):
    """A stream that gives what is on a list, and goes on by itself when that is used up.

    The world may have changed since the list was made (two members are left of three, say), so what
    is asked for need not be what was asked for then; it gets an answer all the same.
    """

    left: list[float]

    def random(self) -> float:
        if not self.left:
            return super().random()
        value = self.left.pop(0)
        return value if value < 1 else (int(value) % (1 << _FLOAT_BITS)) / (1 << _FLOAT_BITS)

    def getrandbits(self, k: int, /) -> int:
        if not self.left:
            return super().getrandbits(k)
        value = self.left.pop(0)
        return (int(value) if value >= 1 else int(value * (1 << k))) & ((1 << k) - 1)


class Noted:
    """Writes down every fault of a run that draws its own, and changes nothing."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def listen_to(self, nemesis: Nemesis) -> None:
        """Begin, before the run does."""
        tape = _Tape()
        tape.taken = []
        tape.setstate(nemesis.rng.getstate())
        nemesis.rng = tape
        inflict = nemesis.inflict

        def noted(kind: str) -> bool:
            begun = len(tape.taken)
            done = inflict(kind)
            if done:
                drawn = tuple(tape.taken[begun:])
                self.decisions.append(Decision(nemesis.level.schedule.now_us, kind, drawn))
            return done

        nemesis.inflict = noted  # type: ignore[method-assign]  # of this one run


class Listed:
    """Does the faults of a list, and no others."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self._decisions = decisions

    def take_over(self, nemesis: Nemesis) -> None:
        """Put the list in the place of chance, before the run begins."""

        def begin() -> None:
            for number, decision in enumerate(self._decisions):
                do = partial(self._do, nemesis, decision, number)
                nemesis.level.schedule.at(decision.at_us, do)

        nemesis.begin = begin  # type: ignore[method-assign]  # of this one run

    def _do(self, nemesis: Nemesis, decision: Decision, number: int) -> None:
        if nemesis.over:
            return
        rng = _Replayed(f"{nemesis.level.schedule.seed}/decision {number}")
        rng.left = list(decision.draws)
        nemesis.rng = rng
        nemesis.inflict(decision.kind)
