"""What a peer knows of its ensemble before it has spoken to anyone."""

from dataclasses import dataclass
from typing import Final

from zabd.model.errors import ConfigError
from zabd.model.ids import Epoch, MemberId
from zabd.model.zxid import COUNTER_MAX
from zabd.zab.log import GENESIS, Batch, LogPosition

COUNTER_MARGIN: Final = 1 << 20
"""How long before its roll-over a leader lets the counter go: more than can be outstanding."""


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The members and their time-outs. Raises ConfigError for one that cannot work."""

    me: MemberId
    voters: tuple[MemberId, ...]
    observers: tuple[MemberId, ...] = ()
    tick_ms: int = 2000
    init_limit: int = 10
    sync_limit: int = 5
    new_cluster: bool = False
    """The operator says, once, that there is no cluster yet: a quorum of blanks may found it."""
    counter_handover: int = COUNTER_MAX - COUNTER_MARGIN
    """A leader whose counter reaches this asks for a new epoch."""

    def __post_init__(self) -> None:
        members = (*self.voters, *self.observers)
        if not self.voters or len(set(members)) != len(members):
            raise ConfigError(f"an ensemble needs voters, and each member once, not {members}")
        if self.me not in members:
            raise ConfigError(f"member {self.me} is not one of the configured members {members}")
        if min(self.tick_ms, self.init_limit, self.sync_limit) < 1:
            raise ConfigError("tickTime, initLimit and syncLimit have to be at least 1")
        object.__setattr__(self, "voters", tuple(sorted(self.voters)))
        object.__setattr__(self, "observers", tuple(sorted(self.observers)))

    @property
    def standalone(self) -> bool:
        """Whether one voter decides everything alone."""
        return len(self.voters) == 1

    @property
    def observer(self) -> bool:
        """Whether this member is an observer."""
        return self.me in self.observers

    @property
    def sync_timeout_ms(self) -> int:
        """How long a silent peer is believed to be alive, once in step."""
        return self.tick_ms * self.sync_limit

    @property
    def init_timeout_ms(self) -> int:
        """How long a peer may make no progress towards being in step."""
        return self.tick_ms * self.init_limit


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What a member's disk says when it starts: the tree stands at `delivered`.

    `tail` holds the batches after it, durable but not known to be committed.
    """

    accepted_epoch: Epoch = 0
    current_epoch: Epoch = 0
    cluster_id: bytes | None = None
    delivered: LogPosition = GENESIS
    tail: tuple[Batch, ...] = ()
    damaged: bool = False
    """Something is lost: the history is only what can be vouched for, the epochs the least ones."""
    founds_anew: bool = False
    """The operator says that this history is the beginning of a new cluster, or of nothing."""
