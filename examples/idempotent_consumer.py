"""Consumers of a queue that delivers each message at least once, and handle each once.

    python examples/idempotent_consumer.py HOSTS

The queue is one of asyncio's, standing for a broker's: it gives a message to another consumer when
it was told to, and here every message comes twice to begin with. Three places show where a broker's
own calls go: `get`, and for each `Action` what it calls acknowledge, requeue and dead letter.
"""

import asyncio
import sys
from dataclasses import dataclass, field

from zabd.client import connect
from zabd.client.integrations.messages import Action, deduplicated
from zabd.client.recipes.dedup import Attempt, Dedup, PermanentError

RETRY_S = 0.2


@dataclass(frozen=True)
class Message:
    """The producer's id stays the same whenever it sends the message again."""

    id: str
    amount: int


@dataclass
class Books:
    """What is written to, and what was put aside."""

    paid: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    failures: int = 1

    async def pay(self, message: Message, ctx: Attempt) -> str:
        """The handler: it fails once for want of a network, and for good for want of sense."""
        if message.amount < 0:
            raise PermanentError("an amount below zero")
        if self.failures:
            self.failures -= 1
            raise OSError("no route to the bank")
        self.paid.append(message.id)
        return f"paid under token {ctx.fencing_token}"


async def consumer(hosts: str, queue: "asyncio.Queue[Message]", books: Books) -> None:
    """Take messages until it is stopped."""
    async with connect(hosts) as zk:
        consume = deduplicated(
            Dedup(zk, base="/payments", on_conflict="fail"),
            books.pay,
            key=lambda message: message.id,
            payload=lambda message: {"amount": message.amount},
        )
        while True:
            message = await queue.get()
            settlement = await consume(message)
            match settlement.action:
                case Action.ACK:
                    pass  # message.ack()
                case Action.RETRY:
                    await asyncio.sleep(RETRY_S)
                    queue.put_nowait(message)  # message.nack(requeue=True)
                case Action.REJECT:
                    books.dead.append(message.id)  # message.reject(requeue=False)
            queue.task_done()


async def main(hosts: str) -> Books:
    """Ten payments and one that makes no sense, each delivered twice, to two consumers."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    books = Books()
    for _ in range(2):
        for number in range(10):
            queue.put_nowait(Message(f"payment-{number}", amount=number))
        queue.put_nowait(Message("payment-x", amount=-1))
    consumers = [asyncio.create_task(consumer(hosts, queue, books)) for _ in range(2)]
    await queue.join()
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    print(
        f"{len(books.paid)} paid, {len(set(books.paid))} of them different, {books.dead} rejected"
    )
    return books


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
