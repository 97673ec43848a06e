"""The kind of class that messages, events and effects are: fields, and nothing else."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass that compares and hashes by its fields, and is never changed once it is made.

    The type checker sees to that. A dataclass that sees to it itself calls a function for each
    field: 0.6 us where this takes 0.3 us, and a batch of one makes 47 of them in three members.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
