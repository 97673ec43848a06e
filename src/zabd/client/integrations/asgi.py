"""`Idempotency-Key` for any ASGI application: one execution of a request, one recorded response.

``IdempotencyKeyMiddleware(app, Dedup(zk))`` around an application, or as a middleware of Starlette
and the like. A request with a key runs once; whoever repeats it, on whichever server, gets the
recorded response. What the dedup recipe promises holds here, and so does what it does not: send
``scope["zabd.attempt"].fencing_token`` along with external writes.

What is answered here, as `application/problem+json`
    400  the header is missing where it is required, or no key
    409  the same request is in progress, or an earlier attempt at it is in doubt
    410  the request was carried out, and its response was not kept
    413  the body is longer than `request_bytes_max`
    422  the key was used for another request
    503  the ensemble cannot be asked, or the key was lost meanwhile: try again

Rules
    A1  A response is recorded before any of it leaves, so that no client is told of a success that
        is run again.
    A2  A response is held back until it is whole. One that outgrows `response_bytes_max`, or is a
        stream of events, is recorded as not kept, and from then on goes out as it comes.
    A3  What an application raises is the application's: the recipe's options say whether the key
        is free again, and the exception goes on to whoever makes a response of it.

Internet draft draft-ietf-httpapi-idempotency-key-header.
"""

import base64
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from zabd.client.integrations.idempotency_key import KeyHeaderError, parse_key, require_length
from zabd.client.recipes.dedup import (
    AlreadyInProgressError,
    Dedup,
    DedupError,
    InDoubtError,
    JsonCodec,
    PayloadMismatchError,
    ResultTooLargeError,
)
from zabd.model.errors import KeeperError

__all__ = ["IdempotencyKeyMiddleware", "kept_by_default"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

HEADER: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotent-replayed", b"true")
RECORDED_HEADERS: Final = frozenset(
    {
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
    }
)
"""Those that belong to the response, and not to the connection or to the caller of that day."""

RESPONSE_BYTES_MAX: Final = 512 * 2**10
"""In base 64 this is two thirds of what a request to an ensemble may have."""

RETRY_AFTER_S: Final = 1

_NOTHING_DONE: Final = frozenset({401, 403, 407, 408, 421, 425, 429, 503})
_NOT_CARRIED_OUT: Final = ("The request was not carried out", "What became of it is not recorded.")
_REFUSALS: Final[Mapping[type[Exception], tuple[str, str]]] = {
    AlreadyInProgressError: (
        "The request is in progress",
        "A request with this Idempotency-Key is being processed.",
    ),
    InDoubtError: (
        "The request is in doubt",
        "An earlier attempt at this request may have been carried out; somebody has to find out.",
    ),
    PayloadMismatchError: (
        "The Idempotency-Key was used before",
        "It belongs to a request with another method, path, query or body.",
    ),
}
_WITHOUT_BODY: Final = frozenset({204, 304})


def kept_by_default(status: int) -> bool:
    """Whether a response with this status is recorded.

    Not if it says that nothing was done, and that the same request may fare better later.
    """
    return status not in _NOTHING_DONE


class IdempotencyKeyMiddleware:
    """Deduplicates the requests of an ASGI application.

    `methods`: those that are looked at. `required`: whether a request without a key is refused,
    or a function of the scope that says so. `tenant`: a function of the scope, whose text is put
    before the key: without it, keys of all callers are one space, and whoever sends somebody
    else's key with the same method, path, query and body gets that response. `keep`: which statuses
    are recorded; of the others the key is free again. `headers`: which of a response's headers are
    recorded. `problem_type`: the URL of a page about the rules, for the bodies of refusals.
    """

    def __init__(
        self,
        app: App,
        dedup: Dedup,
        *,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool | Callable[[Scope], bool] = False,
        tenant: Callable[[Scope], str] | None = None,
        keep: Callable[[int], bool] = kept_by_default,
        headers: Collection[str] = RECORDED_HEADERS,
        request_bytes_max: int = 2**20,
        response_bytes_max: int = 64 * 2**10,
        problem_type: str = "about:blank",
    ) -> None:
        if not 0 <= response_bytes_max <= RESPONSE_BYTES_MAX:
            raise ValueError(f"response_bytes_max is from 0 to {RESPONSE_BYTES_MAX}")
        self._app = app
        self._dedup = dedup
        self._methods = frozenset(method.upper() for method in methods)
        self._required = required
        self._tenant = tenant
        self._keep = keep
        self._headers = frozenset(name.lower().encode("latin-1") for name in headers)
        self._request_bytes_max = request_bytes_max
        self._response_bytes_max = response_bytes_max
        self._problem_type = problem_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        try:
            key = self._key_of(scope)
        except KeyHeaderError as error:
            await self._refuse(send, 400, "The Idempotency-Key is no key", str(error))
            return
        if key is None and self._is_required(scope):
            await self._refuse(
                send, 400, "Idempotency-Key is missing", "This request needs an Idempotency-Key."
            )
        elif key is None:
            await self._app(scope, receive, send)
        else:
            await self._handle(key, scope, receive, send)

    def _key_of(self, scope: Scope) -> str | None:
        key = parse_key([value for name, value in scope["headers"] if name.lower() == HEADER])
        if key is None or self._tenant is None:
            return key
        return require_length(f"{self._tenant(scope)}:{key}")

    def _is_required(self, scope: Scope) -> bool:
        return self._required(scope) if callable(self._required) else self._required

    async def _handle(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive, self._request_bytes_max)
        if body is None:
            return  # the client is gone, and nothing was begun
        if len(body) > self._request_bytes_max:
            allowed = f"With an Idempotency-Key it has {self._request_bytes_max} bytes at most."
            await self._refuse(send, 413, "The body is too long", allowed)
            return
        exchange = _Exchange(scope, body, receive, send)
        try:
            await self._run_once(key, exchange)
        except (DedupError, KeeperError) as error:
            if exchange.began or error is exchange.raised:
                raise
            await self._refuse_by(send, error)

    async def _run_once(self, key: str, exchange: "_Exchange") -> None:
        async with AsyncExitStack() as stack:
            held = await stack.enter_async_context(
                self._dedup.hold(
                    key,
                    payload=exchange.payload,
                    on_conflict="fail",
                    reuse="replay",
                    codec=JsonCodec(),
                    max_inline=_inline_bytes_max(self._response_bytes_max),
                )
            )
            if held.replay is None:
                await exchange.run(self._app, _Recorder(self, held, exchange))
                return
        await self._replay(exchange.send, held.replay.value)

    async def _replay(self, send: Send, recorded: Mapping[str, Any] | None) -> None:
        if recorded is None or recorded["body"] is None:
            status = "" if recorded is None else f", with the status {recorded['status']}"
            await self._refuse(
                send,
                410,
                "The response was not kept",
                f"The request was carried out{status}; its response was too long to be recorded.",
            )
            return
        body = base64.b64decode(recorded["body"])
        headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in recorded["headers"]
        ]
        await _respond(send, recorded["status"], [*headers, REPLAYED], body)

    async def _refuse_by(self, send: Send, error: DedupError | KeeperError) -> None:
        """The errors' own sentences have paths and keys, which are not the caller's business."""
        title, detail = _REFUSALS.get(type(error), _NOT_CARRIED_OUT)
        status = error.http_status if isinstance(error, DedupError) else 503
        retry = error.retry if isinstance(error, DedupError) else True
        await self._refuse(send, status, title, detail, retry=retry)

    async def _refuse(
        self, send: Send, status: int, title: str, detail: str, *, retry: bool = False
    ) -> None:
        problem = {
            "type": self._problem_type,
            "title": title,
            "status": status,
            "detail": detail,
        }
        headers: Headers = [(b"content-type", b"application/problem+json")]
        if retry:
            headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
        await _respond(send, status, headers, json.dumps(problem).encode())

    # For the recorder.

    def keeps(self, status: int) -> bool:
        """Whether a response with this status is recorded."""
        return self._keep(status)

    def fits(self, size_bytes: int) -> bool:
        """Whether a response of this size is held back and recorded."""
        return size_bytes <= self._response_bytes_max

    def recorded_headers(self, headers: Headers) -> list[list[str]]:
        """Those that a replay has as well, as text."""
        return [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in headers
            if name.lower() in self._headers
        ]


class _Exchange:
    """One request and what has become of it."""

    def __init__(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self.send = send
        self.began = False  # whether any of the response has left
        self.raised: BaseException | None = None  # by the application
        self._scope = scope
        self._body = body
        self._receive = receive
        self._told = False

    @property
    def payload(self) -> bytes:
        """What has to be equal when a key is used again."""
        scope = self._scope
        query = scope.get("query_string", b"").decode("latin-1")
        target = json.dumps([scope["method"], scope["path"], query])
        return target.encode() + b"\n" + self._body

    async def run(self, app: App, recorder: "_Recorder") -> None:
        """Run the application; raise what kept its response from being recorded, or what it did."""
        # Extensions are other ways to send a response, past whoever records it.
        scope = {**self._scope, "extensions": {}, "zabd.attempt": recorder.attempt}
        try:
            await app(scope, self._receive_again, recorder.send)
        except BaseException as error:
            if recorder.failure is None:
                self.raised = error
                raise
        if recorder.failure is not None:
            raise recorder.failure
        if not recorder.is_done:
            self.raised = RuntimeError("the application has ended without a whole response")
            raise self.raised

    async def _receive_again(self) -> Message:
        if self._told:
            return await self._receive()
        self._told = True
        return {"type": "http.request", "body": self._body, "more_body": False}


class _Recorder:
    """Holds a response back until it is recorded (A1, A2)."""

    def __init__(
        self,
        middleware: IdempotencyKeyMiddleware,
        attempt: Any,  # noqa: ANN401 - what `Dedup.hold` gives
        exchange: _Exchange,
    ) -> None:
        self.attempt = attempt
        self.failure: DedupError | KeeperError | None = None
        self.is_done = False
        self._middleware = middleware
        self._exchange = exchange
        self._start: Message = {}
        self._body = bytearray()
        self._is_let_go = False

    async def send(self, message: Message) -> None:
        """Take what the application sends."""
        if self.failure is not None:
            return  # it was told; what it says of that to its client is not sent
        kind = message["type"]
        if self._is_let_go:
            self.is_done |= kind == "http.response.body" and not message.get("more_body", False)
            await self._exchange.send(message)
        elif kind == "http.response.start":
            self._start = message
        elif kind == "http.response.body":
            await self._take(message.get("body", b""), more=message.get("more_body", False))

    async def _take(self, body: bytes, *, more: bool) -> None:
        self._body += body
        whole = not more
        kept = self._middleware.fits(len(self._body)) and not self._is_endless()
        if whole or not kept:
            await self._settle(kept=kept)
            self._is_let_go, self.is_done = True, whole
            self._exchange.began = True
            await self._exchange.send(self._start)
            await self._exchange.send(
                {"type": "http.response.body", "body": bytes(self._body), "more_body": more}
            )
            self._body.clear()

    def _is_endless(self) -> bool:
        return any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self._start.get("headers", ())
        )

    async def _settle(self, *, kept: bool) -> None:
        """Record the response, or free the key."""
        status = self._start["status"]
        try:
            if not self._middleware.keeps(status):
                await self.attempt.release()
                return
            headers = self._middleware.recorded_headers(list(self._start.get("headers", ())))
            body = base64.b64encode(self._body).decode("ascii") if kept else None
            await self.attempt.complete({"status": status, "headers": headers, "body": body})
        except ResultTooLargeError:
            return  # it is recorded that the request was carried out; such headers are not kept
        except (DedupError, KeeperError) as error:
            self.failure = error
            raise


def _inline_bytes_max(response_bytes_max: int) -> int:
    """Room for a body in base 64, and for 16 KiB of status and headers."""
    return response_bytes_max * 4 // 3 + 16 * 2**10


async def _read_body(receive: Receive, bytes_max: int) -> bytes | None:
    """The whole body, or more than `bytes_max` of it; None if the client went away."""
    body = bytearray()
    more = True
    while more and len(body) <= bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    if status not in _WITHOUT_BODY:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
