"""An HTTP API whose orders can be sent again without being placed again.

    python examples/idempotent_api.py HOSTS

Two servers of one application, on one ensemble; a client sends an order to the first, takes its
answer for lost, and sends it to the second. Needs Starlette and httpx; in service the application
is run by an ASGI server of your choice (`uvicorn --factory`) in place of the client's transport.
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from zabd.client import connect
from zabd.client.integrations.asgi import IdempotencyKeyMiddleware
from zabd.client.recipes.dedup import Dedup


def make_app(hosts: str, orders: list[str]) -> Starlette:
    """One server's application; `orders` stands for what it writes to."""
    zk = connect(hosts)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with zk:
            yield

    async def place(request: Request) -> JSONResponse:
        order = (await request.body()).decode()
        token = request.scope["zabd.attempt"].fencing_token  # for whatever is written to
        orders.append(f"{order} {token}")
        return JSONResponse({"order": len(orders)}, status_code=201)

    return Starlette(
        routes=[Route("/orders", place, methods=["POST"])],
        middleware=[Middleware(IdempotencyKeyMiddleware, dedup=Dedup(zk), required=True)],
        lifespan=lifespan,
    )


async def send(app: Starlette, key: str, order: str) -> httpx.Response:
    """What a client does, each time that it does not know what became of its order."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.post("/orders", content=order, headers={"Idempotency-Key": f'"{key}"'})


async def main(hosts: str) -> list[httpx.Response]:
    """Send one order twice, then another one under its key."""
    orders: list[str] = []
    one, two = make_app(hosts, orders), make_app(hosts, orders)
    key = str(uuid.uuid4())
    async with one.router.lifespan_context(one), two.router.lifespan_context(two):
        answers = [
            await send(one, key, "two cups"),
            await send(two, key, "two cups"),
            await send(two, key, "three cups"),
        ]
    for answer in answers:
        replayed = answer.headers.get("idempotent-replayed", "false")
        print(answer.status_code, f"replayed={replayed}", answer.text)
    print(f"{len(orders)} order placed")
    return answers


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
