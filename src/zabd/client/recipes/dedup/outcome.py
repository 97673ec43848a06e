"""From what a function returned or raised to the record of it (dedup recipe, sections 3.1 and 5.7).

A value that a record cannot hold is left out, never the record: that it happened must not be lost
because the value is big.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from zabd.client.recipes.dedup.errors import ResultTooLargeError
from zabd.client.recipes.dedup.records import COMPLETED, FAILED, Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import Place


@dataclass(frozen=True, slots=True)
class Value:
    """A value as a record holds it; `error` is raised to the caller after the commit."""

    stored: Any = None
    omitted: bool = False
    digest: str | None = None
    error: Exception | None = None


def keep(request: Request, value: Any) -> Value:  # noqa: ANN401 - whatever the function returned
    """The value for the record."""
    options = request.options
    try:
        stored = options.codec.encode(value)
        text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        return Value(omitted=True, error=error)
    data = text.encode()
    if len(data) <= options.max_inline:
        return Value(stored)
    too_large = request.error(
        ResultTooLargeError,
        f"the value has {len(data)} bytes, max_inline is {options.max_inline}: the outcome is"
        " recorded without it",
    )
    return Value(omitted=True, digest=hashlib.sha256(data).hexdigest(), error=too_large)


def completed(
    request: Request, place: Place, started: Started, value: Value, result_ref: str | None
) -> Result:
    """The record of a value."""
    return _record(request, place, started, COMPLETED, value, None, result_ref)


def failed(
    request: Request, place: Place, started: Started, error: BaseException, kind: str | None
) -> Result:
    """The record of a failure; `kind` stands for its type."""
    failure = {
        "type": kind or type(error).__name__,
        "message": str(error),
        "data": getattr(error, "data", None),
    }
    return _record(request, place, started, FAILED, Value(), failure, None)


def _record(
    request: Request,
    place: Place,
    started: Started,
    status: str,
    value: Value,
    failure: dict[str, object] | None,
    result_ref: str | None,
) -> Result:
    return Result(
        key=request.key,
        status=status,
        attempt=started.attempt,
        attempt_id=started.attempt_id,
        payload_hash=started.payload_hash,
        alg=started.alg,
        fencing_token=place.token,
        token_epoch=request.options.token_epoch,
        seq=place.sequence,
        codec=request.options.codec.name,
        value=value.stored,
        result_ref=result_ref,
        omitted=value.omitted,
        digest=value.digest,
        error=failure,
        owner=started.owner,
        started_ms=started.started_ms,
        finished_ms=place.client.wall_ms(),
        ttl_ms=request.options.result_ttl_ms,
    )
