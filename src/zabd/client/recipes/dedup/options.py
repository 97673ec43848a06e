"""What a caller may choose, and the values that callers get and give (dedup recipe, section 12)."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from zabd.client.recipes.dedup.errors import PermanentError
from zabd.client.recipes.dedup.fingerprint import Fingerprint
from zabd.client.recipes.dedup.records import Codec, JsonCodec, Result, Started
from zabd.model.acl import Acl
from zabd.model.stat import Stat

log = logging.getLogger("zabd.dedup")

# A time to live has 40 bits on the servers: 34 years.
TTL_MS_MAX = (1 << 40) - 1

T = TypeVar("T")

OnConflict: TypeAlias = Literal["wait", "fail"]
OnInDoubt: TypeAlias = Literal["rerun", "fail", "recover"]
OnError: TypeAlias = Literal["release", "in_doubt"]
Reuse: TypeAlias = Literal["replay", "reject", "rerun_failed"]
LogKey: TypeAlias = Literal["clear", "hash"]


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """It did happen, and this is its value."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """It did happen, and failed for good."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a caller gets: the value, and where it is from."""

    value: T
    replayed: bool
    attempt: int
    fencing_token: int
    record: Result


@dataclass(frozen=True, slots=True)
class Previous:
    """An earlier attempt that ended in doubt: it may have happened."""

    attempt: int
    attempt_id: str
    fencing_token: int | None
    owner: Mapping[str, object]
    started_ms: int
    recovery_point: str | None
    recovery_data: Any

    @classmethod
    def of(cls, started: Started, stat: Stat) -> "Previous":
        """What the journal says about it.

        A journal that was written in one multi with its lock znode could not know the token yet,
        but shares its czxid.
        """
        return cls(
            started.attempt,
            started.attempt_id,
            started.fencing_token or stat.czxid,
            started.owner,
            started.started_ms,
            started.recovery_point,
            started.recovery_data,
        )


Recover: TypeAlias = Callable[[Any, Previous], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one `Dedup`, or of one call. Times are in seconds.

    `on_conflict`: another caller works on the key: wait for it, or fail at once. `on_in_doubt`: an
    earlier attempt may have happened: run again, fail, or ask `recover`. `on_error`: an exception
    that is not one of `store_exceptions`: free the key, or leave the attempt in doubt; by default
    the first only if `on_in_doubt` is "rerun". `reuse`: the key has an outcome: replay it, reject
    the call, or run again if it was a failure. `result_ttl`, `started_ttl`: how long an outcome,
    and the journal of an attempt in doubt, are kept at least; the second is the first by default.
    """

    on_conflict: OnConflict = "wait"
    on_in_doubt: OnInDoubt = "rerun"
    on_error: OnError | None = None
    reuse: Reuse = "replay"
    retry_on_lost: bool = False
    acquire_timeout: float | None = 30.0
    execution_timeout: float | None = None
    abort_grace: float = 1.0
    result_ttl: float = 86_400.0
    started_ttl: float | None = None
    retry_horizon: float | None = None
    journal: bool = True
    watch_own: bool = False
    early_mismatch: bool = False
    max_contenders: int = 1000
    max_attempts: int | None = None
    max_inline: int = 64 * 1024
    store_exceptions: tuple[type[BaseException], ...] = (PermanentError,)
    recover: Recover | None = None
    fingerprint: Callable[[object], Fingerprint] | None = None
    select: Callable[[object], object] | None = None
    hmac_key: bytes | None = None
    allow_alg_upgrade: bool = False
    token_epoch: int | None = None
    key_hash: bool = False
    log_key: LogKey = "clear"
    codec: Codec = field(default_factory=JsonCodec)
    acl: tuple[Acl, ...] | None = None

    def __post_init__(self) -> None:
        _require(self.on_conflict in {"wait", "fail"}, "on_conflict", self.on_conflict)
        _require(self.on_in_doubt in {"rerun", "fail", "recover"}, "on_in_doubt", self.on_in_doubt)
        _require(self.on_error in {None, "release", "in_doubt"}, "on_error", self.on_error)
        _require(self.reuse in {"replay", "reject", "rerun_failed"}, "reuse", self.reuse)
        _require(self.log_key in {"clear", "hash"}, "log_key", self.log_key)
        _require(_is_ttl(self.result_ttl), "result_ttl", self.result_ttl)
        _require(
            self.started_ttl is None or _is_ttl(self.started_ttl), "started_ttl", self.started_ttl
        )
        _require(self.max_contenders > 0, "max_contenders", self.max_contenders)
        if not self.journal and self.on_in_doubt != "rerun":
            raise ValueError('journal=False cannot tell what is in doubt: on_in_doubt="rerun" only')
        if (self.on_in_doubt == "recover") != (self.recover is not None):
            raise ValueError('on_in_doubt="recover" and recover= go together')

    @property
    def result_ttl_ms(self) -> int:
        """How long an outcome is kept at least."""
        return max(1, int(self.result_ttl * 1000))

    @property
    def started_ttl_ms(self) -> int:
        """How long a journal that nobody touches is kept at least."""
        ttl = self.result_ttl if self.started_ttl is None else self.started_ttl
        return max(1, int(ttl * 1000))

    @property
    def error_frees_the_key(self) -> bool:
        """Whether an ordinary exception proves that the key may be used again."""
        if self.on_error is None:
            return self.on_in_doubt == "rerun"
        return self.on_error == "release"

    def warn_if_short(self, session_timeout: float) -> None:
        """Warn when outcomes are forgotten before those who need them ask again."""
        if self.result_ttl < 2 * session_timeout:
            log.warning(
                "result_ttl=%s is below twice the session timeout of %s s: a caller that lost its"
                " session may find its own outcome forgotten",
                self.result_ttl,
                session_timeout,
            )
        if self.retry_horizon is not None and self.result_ttl < self.retry_horizon:
            log.warning(
                "result_ttl=%s is below retry_horizon=%s: late retries will run again",
                self.result_ttl,
                self.retry_horizon,
            )


def _is_ttl(seconds: float) -> bool:
    return 0 < seconds * 1000 <= TTL_MS_MAX


def _require(valid: bool, name: str, value: object) -> None:  # noqa: FBT001 - an assertion's shape
    if not valid:
        raise ValueError(f"{name}={value!r} is not one of the values the documentation lists")
