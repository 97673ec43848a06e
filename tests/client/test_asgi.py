"""Claims about `Idempotency-Key` around an ASGI application: Starlette's, on scripted servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import connect
from zabd.client.integrations.asgi import IdempotencyKeyMiddleware
from zabd.client.integrations.idempotency_key import KeyHeaderError, parse_key
from zabd.client.recipes.dedup import Dedup

KEY = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}
Endpoint = Callable[[Request], Awaitable[Response]]


class Shop:
    """An application with one endpoint, behind the middleware, and a client of it."""

    def __init__(
        self,
        ensemble: ScriptedEnsemble,
        dedup: Dedup,
        endpoint: Endpoint,
        **how: Any,  # noqa: ANN401 - the middleware's
    ) -> None:
        self.dedup = dedup
        self.runs: list[int] = []
        self.ensemble = ensemble
        self._endpoint = endpoint
        everything = ["GET", "POST", "PATCH"]
        self.app = Starlette(
            routes=[Route("/{path:path}", self._handle, methods=everything)],
            middleware=[Middleware(IdempotencyKeyMiddleware, dedup=dedup, **how)],
        )
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://shop")

    async def _handle(self, request: Request) -> Response:
        attempt = request.scope.get("zabd.attempt")
        self.runs.append(0 if attempt is None else attempt.fencing_token)
        return await self._endpoint(request)

    async def post(
        self, body: bytes = b"1 cup", path: str = "/orders", **headers: str
    ) -> httpx.Response:
        """An order with the usual key."""
        return await self.client.post(path, content=body, headers={**KEY, **headers})


@asynccontextmanager
async def shop(loop: FastLoop, endpoint: Endpoint, **how: Any) -> AsyncIterator[Shop]:  # noqa: ANN401
    """Open for the length of a block."""
    ensemble = ScriptedEnsemble(loop, 3)
    options = how.pop("options", {})
    async with connect(ensemble.hosts) as zk:
        it = Shop(ensemble, Dedup(zk, **options), endpoint, **how)
        async with it.client:
            yield it


async def order(request: Request) -> Response:
    """What most endpoints are: a body in, a resource made, a body out."""
    body = (await request.body()).decode()
    headers = {"location": "/orders/1", "set-cookie": "a=b", "x-trace": "1"}
    return JSONResponse({"order": body}, status_code=201, headers=headers)


def test_a_repeated_request_gets_the_recorded_response() -> None:
    """Status, body and the headers that belong to them; and it says that it is a replay."""

    async def main(loop: FastLoop) -> None:
        async with shop(loop, order) as it:
            first, second = await it.post(), await it.post()
            assert (first.status_code, second.status_code) == (201, 201)
            assert first.json() == second.json() == {"order": "1 cup"}
            assert second.headers["location"] == "/orders/1"
            assert second.headers["content-type"] == "application/json"
            assert second.headers["content-length"] == first.headers["content-length"]
            assert second.headers["idempotent-replayed"] == "true"
            assert "idempotent-replayed" not in first.headers
            assert first.headers["set-cookie"] == "a=b"
            assert not {"set-cookie", "x-trace"} & second.headers.keys()
            assert len(it.runs) == 1
            assert it.runs[0] > 0  # the fencing token

    run(main)


def test_a_key_is_asked_for_only_where_it_is_required() -> None:
    """Without one the application is as it was; reads never need any."""

    async def main(loop: FastLoop) -> None:
        def on_orders(scope: MutableMapping[str, Any]) -> bool:
            return bool(scope["path"] == "/orders")

        async with shop(loop, order, required=on_orders) as it:
            refused = await it.client.post("/orders")
            assert refused.status_code == 400
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["title"] == "Idempotency-Key is missing"
            assert (await it.client.post("/carts")).status_code == 201
            assert (await it.client.post("/carts")).status_code == 201
            assert (await it.client.get("/orders", headers=KEY)).status_code == 201
            assert it.runs == [0, 0, 0]
            assert not it.ensemble.leader.nodes.get("/dedup")

    run(main)


@pytest.mark.parametrize(
    "change",
    [{"body": b"2 cups"}, {"path": "/returns"}, {"path": "/orders?gift=1"}],
)
def test_a_key_for_another_request_is_refused(change: dict[str, Any]) -> None:
    """422: the client has reused it by mistake, and nothing is run."""

    async def main(loop: FastLoop) -> None:
        async with shop(loop, order) as it:
            await it.post()
            refused = await it.post(**change)
            assert refused.status_code == 422
            assert refused.json()["status"] == 422
            assert "retry-after" not in refused.headers
            assert len(it.runs) == 1

    run(main)


def test_a_request_that_is_in_progress_is_refused_for_now() -> None:
    """409 with Retry-After; later the same request is replayed."""

    async def main(loop: FastLoop) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            begun.set()
            await go_on.wait()
            return await order(request)

        async with shop(loop, slow) as it:
            first = asyncio.create_task(it.post())
            await begun.wait()
            refused = await it.post()
            assert refused.status_code == 409
            assert refused.headers["retry-after"] == "1"
            go_on.set()
            assert (await first).status_code == 201
            assert "idempotent-replayed" in (await it.post()).headers
            assert len(it.runs) == 1

    run(main)


def test_tenants_have_keys_of_their_own() -> None:
    """Nobody gets somebody else's response by knowing the key and the body."""

    async def main(loop: FastLoop) -> None:
        def tenant(scope: MutableMapping[str, Any]) -> str:
            return dict(scope["headers"])[b"x-tenant"].decode()

        async with shop(loop, order, tenant=tenant) as it:
            for name in ("a", "b", "a"):
                await it.post(**{"x-tenant": name})
            assert len(it.runs) == 2
            assert (await it.post(**{"x-tenant": "c" * 250})).status_code == 400

    run(main)


def test_what_says_that_nothing_was_done_is_not_recorded() -> None:
    """503 now, 201 later, with one key; a 500 that the application chose to send is an outcome."""

    async def main(loop: FastLoop) -> None:
        statuses = [503, 201]

        async def fails_once(request: Request) -> Response:
            return PlainTextResponse("x", status_code=statuses.pop(0))

        async with shop(loop, fails_once) as it:
            assert [(await it.post()).status_code for _ in range(3)] == [503, 201, 201]
            assert len(it.runs) == 2
        statuses[:] = [500]
        async with shop(loop, fails_once) as it:
            assert [(await it.post()).status_code for _ in range(2)] == [500, 500]
            assert len(it.runs) == 1

    run(main)


@pytest.mark.parametrize(("on_in_doubt", "second"), [("rerun", 201), ("fail", 409)])
def test_an_exception_is_the_applications_and_the_recipe_decides(
    on_in_doubt: str, second: int
) -> None:
    """A3: 500 for the caller now; then it is run again, or in doubt until somebody resolves it."""

    async def main(loop: FastLoop) -> None:
        failures = [RuntimeError("disk full")]

        async def raises_once(request: Request) -> Response:
            if failures:
                raise failures.pop()
            return await order(request)

        async with shop(loop, raises_once, options={"on_in_doubt": on_in_doubt}) as it:
            assert (await it.post()).status_code == 500
            assert (await it.post()).status_code == second

    run(main)


def test_a_body_or_a_header_that_cannot_be_taken_is_refused_before_anything_runs() -> None:
    """413 for the one, 400 for the other."""

    async def main(loop: FastLoop) -> None:
        async with shop(loop, order, request_bytes_max=10) as it:
            assert (await it.post(b"x" * 11)).status_code == 413
            assert (await it.post(b"x" * 10)).status_code == 201
            twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
            assert (await it.client.post("/orders", headers=twice)).status_code == 400
            assert len(it.runs) == 1

    run(main)


def test_a_response_that_is_too_long_goes_out_and_is_not_kept() -> None:
    """A2: the first caller has all of it, who repeats the request hears that it was carried out."""

    async def main(loop: FastLoop) -> None:
        async def long(_request: Request) -> Response:
            async def parts() -> AsyncIterator[bytes]:
                for _ in range(5):
                    yield b"x" * 40

            return StreamingResponse(parts(), status_code=202)

        async with shop(loop, long, response_bytes_max=100) as it:
            first, second = await it.post(), await it.post()
            assert (first.status_code, len(first.content)) == (202, 200)
            assert second.status_code == 410
            assert "202" in second.json()["detail"]
            assert len(it.runs) == 1
        async with shop(loop, long, response_bytes_max=200) as it:
            assert [len((await it.post()).content) for _ in range(2)] == [200, 200]

    run(main)


async def call(app: Any, sent: list[tuple[str, Any]], told: Callable[[], Any]) -> None:  # noqa: ANN401
    """One request, without a library in between; with each message what was known then."""
    headers = [(b"idempotency-key", b"k")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": headers,
        "extensions": {"http.response.pathsend": {}},
    }
    parts = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> MutableMapping[str, Any]:
        return parts.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append((message["type"], told()))

    await app(scope, receive, send)


@pytest.mark.parametrize("media_type", ["text/plain", "text/event-stream"])
def test_nothing_leaves_before_it_is_recorded(media_type: str) -> None:
    """A1, also for a stream of events, which is let go with its first part."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        parts: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
            assert scope["extensions"] == {}
            assert (await receive())["body"] == b"ab"
            content_type = (b"content-type", media_type.encode())
            await send({"type": "http.response.start", "status": 200, "headers": [content_type]})
            for number in range(3):
                parts.append("part")
                more = number < 2
                await send({"type": "http.response.body", "body": b"x", "more_body": more})
            assert (await receive())["type"] == "http.disconnect"

        def recorded() -> tuple[bool, int]:
            return "result" in ensemble.leader.nodes["/dedup/k"].children, len(parts)

        async with connect(ensemble.hosts) as zk:
            sent: list[tuple[str, Any]] = []
            await call(IdempotencyKeyMiddleware(app, Dedup(zk)), sent, recorded)
        first = 1 if media_type == "text/event-stream" else 3
        assert sent[0] == ("http.response.start", (True, first))
        assert all(told[0] for _, told in sent)

    run(main)


def test_work_behind_the_response_does_not_hold_it_back() -> None:
    """A background task may take long, and may fail: the response is recorded and gone."""

    async def main(loop: FastLoop) -> None:
        async def with_background(request: Request) -> Response:
            async def work() -> None:
                raise LookupError("too late to matter")

            return PlainTextResponse("done", background=BackgroundTask(work))

        async with shop(loop, with_background) as it:
            assert [(await it.post()).text for _ in range(2)] == ["done", "done"]
            assert len(it.runs) == 1

    run(main)


def test_a_session_that_is_lost_meanwhile_is_said_and_nothing_leaves() -> None:
    """503: the response that could not be recorded is not sent, since another may run it."""

    async def main(loop: FastLoop) -> None:
        async def expires(request: Request) -> Response:
            it.ensemble.expire(it.dedup.client.session_id)
            await asyncio.sleep(1)
            return await order(request)

        async with shop(loop, expires) as it:
            refused = await it.post()
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"

    run(main)


def test_an_application_without_a_response_is_an_error() -> None:
    """Not an outcome: nobody could be shown it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)

        async def app(_scope: Any, _receive: Any, _send: Any) -> None:  # noqa: ANN401
            return

        async with connect(ensemble.hosts) as zk:
            with pytest.raises(RuntimeError, match="without a whole response"):
                await call(IdempotencyKeyMiddleware(app, Dedup(zk)), [], lambda: None)

    run(main)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], None),
        ([b'"a key"'], "a key"),
        ([rb' "a \"b\" \\" '], 'a "b" \\'),
        ([b"8e03978e-40d5"], "8e03978e-40d5"),
        ([b"a/b:c=="], "a/b:c=="),
    ],
)
def test_keys_are_strings_with_or_without_their_marks(values: list[bytes], key: str | None) -> None:
    """The draft has them, most clients do not send them."""
    assert parse_key(values) == key


@pytest.mark.parametrize(
    "values",
    [[b"a", b"b"], [b""], [b'""'], [b'"a'], [b'"a";x=1'], [b"a, b"], [b"\xff"], [b"x" * 256]],
)
def test_what_cannot_be_a_key_is_refused(values: list[bytes]) -> None:
    """Two proxies that read it differently would make two keys of it."""
    with pytest.raises(KeyHeaderError):
        parse_key(values)
