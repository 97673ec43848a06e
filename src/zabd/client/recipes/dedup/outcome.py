"""From what a function returned or raised to the record of it (dedup recipe, sections 3.1 and 5.7).

A value that a record cannot hold is left out, never the record: that it happened must not be lost
because the value is big, or is nothing that UTF-8 JSON can say. So nothing here raises: what was
wrong with a value is told to its caller once the record is kept.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from zabd.client.recipes.dedup.errors import ResultTooLargeError
from zabd.client.recipes.dedup.records import COMPLETED, FAILED, Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import Place

# The name of an exception's class is some tens of bytes; `kind` may be anything.
TYPE_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class Value:
    """A value as a record holds it; `error` is raised to the caller after the commit."""

    stored: Any = None
    omitted: bool = False
    digest: str | None = None
    error: Exception | None = None


def keep(request: Request, value: Any) -> Value:  # noqa: ANN401 - whatever the function returned
    """The value for the record."""
    try:
        stored = request.options.codec.encode(value)
        data = _json(stored)
    except Exception as error:  # noqa: BLE001 - a codec, and what a value consists of, may raise any
        return Value(omitted=True, error=_told(error, "value"))
    return _within_limit(request, "value", stored, data, instead=None)


def keep_failure(request: Request, error: BaseException, kind: str | None) -> Value:
    """The failure for the record; its text and data share the limit of values.

    Text that is no UTF-8 is escaped, and a failure that does not fit is cut to its type and text.
    """
    name, message = _plain(str(kind or type(error).__name__)), _plain(_text_of(error))
    short = {
        "type": _cut(name, TYPE_BYTES_MAX),
        "message": _cut(message, request.options.max_inline),
        "data": None,
    }
    try:
        failure = {**short, "message": message, "data": getattr(error, "data", None)}
        data = _json(failure)
    except Exception as unfit:  # noqa: BLE001 - see keep
        return Value(short, omitted=True, error=_told(unfit, "failure's data"))
    return _within_limit(request, "failure", failure, data, instead=short)


def completed(
    request: Request, place: Place, started: Started, value: Value, result_ref: str | None
) -> Result:
    """The record of a value."""
    return _record(request, place, started, COMPLETED, value, result_ref)


def failed(request: Request, place: Place, started: Started, failure: Value) -> Result:
    """The record of a failure."""
    return _record(request, place, started, FAILED, failure, None)


def without_value(result: Result) -> Result:
    """The same outcome without what may be large in it: what no server takes."""
    failure = result.error and {**result.error, "message": "(too large)", "data": None}
    data = _json(result.value if result.status == COMPLETED else result.error)
    digest = hashlib.sha256(data).hexdigest()
    return replace(result, value=None, error=failure, omitted=True, digest=digest)


def omission(request: Request) -> ResultTooLargeError:
    """What a caller is told whose value no server took."""
    return request.error(
        ResultTooLargeError,
        "the outcome is recorded without its value: with it the record is larger than the servers"
        " take, so max_inline is above what they are configured for",
    )


def _json(stored: object) -> bytes:
    """The bytes that it takes in a record; raises for what a record cannot hold."""
    text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def _within_limit(
    request: Request, what: str, stored: object, data: bytes, *, instead: object
) -> Value:
    limit = request.options.max_inline
    if len(data) <= limit:
        return Value(stored)
    too_large = request.error(
        ResultTooLargeError,
        f"the {what} has {len(data)} bytes, max_inline is {limit}: the outcome is recorded"
        " without it",
    )
    digest = hashlib.sha256(data).hexdigest()
    return Value(instead, omitted=True, digest=digest, error=too_large)


def _told(error: Exception, what: str) -> Exception:
    error.add_note(f"The outcome is recorded without the {what}, which UTF-8 JSON cannot hold.")
    return error


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unsaid:  # noqa: BLE001 - a user's class may raise any
        return f"({type(unsaid).__name__} from its __str__)"


def _plain(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates, as from os.fsdecode, are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    return text.encode()[:limit].decode(errors="ignore")


def _record(
    request: Request,
    place: Place,
    started: Started,
    status: str,
    kept: Value,
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
        value=kept.stored if status == COMPLETED else None,
        result_ref=None if result_ref is None else _plain(str(result_ref)),
        omitted=kept.omitted,
        digest=kept.digest,
        error=None if status == COMPLETED else kept.stored,
        owner=started.owner,
        started_ms=started.started_ms,
        finished_ms=place.client.wall_ms(),
        ttl_ms=request.options.result_ttl_ms,
    )
