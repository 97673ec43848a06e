"""The zxid: one number that orders every transaction an ensemble ever made.

The upper half is the epoch of the leader that made it, the lower half counts within that epoch, so
zxids of a later leader are greater than all of an earlier one. Junqueira, Reed and Serafini, "Zab"
(DSN 2011), section III; client protocol, section 3.
"""

from typing import Final

COUNTER_BITS: Final = 32
COUNTER_MAX: Final = 2**COUNTER_BITS - 1


class Zxid(int):
    """A transaction id; compares, hashes and packs as the plain integer that travels on the wire.

    Arithmetic gives an `int`: wrap the sum again where a Zxid is wanted.
    """

    __slots__ = ()

    @classmethod
    def of(cls, epoch: int, counter: int) -> "Zxid":
        """The zxid of the given epoch and counter; ValueError if either cannot be part of one."""
        if epoch < 0 or not 0 <= counter <= COUNTER_MAX:
            raise ValueError(
                f"a zxid has an epoch from 0 and a counter from 0 to {COUNTER_MAX}, "
                f"not {epoch} and {counter}"
            )
        return cls(epoch << COUNTER_BITS | counter)

    @property
    def epoch(self) -> int:
        """The epoch of the leader that made the transaction."""
        return self >> COUNTER_BITS

    @property
    def counter(self) -> int:
        """The transaction's place within its epoch; 0 is the epoch's beginning, before any."""
        return self & COUNTER_MAX

    def __repr__(self) -> str:
        return f"{self.epoch}:{self.counter}"

    __str__ = __repr__


ZXID_ZERO: Final = Zxid(0)
"""The state of an ensemble before its first transaction."""
