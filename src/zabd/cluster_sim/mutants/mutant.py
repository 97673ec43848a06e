"""What a mutant is: one known mistake, and how it gets into the code of production for a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zabd.cluster_sim.shape import NOTHING_FIXED

Patch: TypeAlias = tuple[Any, str, object]
"""Whose attribute, its name, and what takes its place: a class or a module is patched."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: what is wrong, what it led to, and how to make it so."""

    name: str
    bug: str  # its id in the gallery
    what: str
    history: str  # the schedule that brings it to light, as a sentence
    reference: str  # where it has happened, or who has described it
    level: str
    found_by: frozenset[str]  # the checks that are meant to find it
    patches: Callable[[], list[Patch]]
    shape: Mapping[str, Any] = field(default_factory=lambda: NOTHING_FIXED)  # while it is hunted
    without: frozenset[str] = frozenset()  # checks that are off, to see what fires behind them

    def __str__(self) -> str:
        return (
            f"{self.bug} {self.name} (level {self.level}): {self.what}\n"
            f"What it led to: {self.history}\n"
            f"Known from: {self.reference}\n"
            f"To be found by: {', '.join(sorted(self.found_by))}{self.blindly}"
        )

    @property
    def blindly(self) -> str:
        """Which checks are off while it is hunted, as the end of a sentence."""
        return f" without {', '.join(sorted(self.without))}" if self.without else ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The mistake is in the code while this context is open."""
        patches = self.patches()
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A known mistake that has no place in this code, and why."""

    bug: str  # its id in the gallery
    what: str
    reason: str  # what about this code leaves no room for it, as a sentence
