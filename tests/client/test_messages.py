"""Claims about messages that come more than once: what is run, and what the queue is told."""

import asyncio
from typing import Any

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import connect
from zabd.client.integrations.messages import Action, Settlement, deduplicated
from zabd.client.recipes.dedup import Attempt, Dedup, NotExecuted, PermanentError

Message = dict[str, Any]


class Worker:
    """A handler that does what the message says, and counts."""

    def __init__(self) -> None:
        self.runs = 0

    async def handle(self, message: Message, ctx: Attempt) -> object:
        self.runs += 1
        assert ctx.fencing_token > 0
        match message.get("do"):
            case "fail":
                raise OSError("no route")
            case "fail for good":
                raise PermanentError("no such account")
            case "wait":
                await asyncio.sleep(60)
            case "too much":
                return "x" * 100
        return self.runs


def settle(*messages: Message, **options: Any) -> tuple[list[Settlement[object]], int]:  # noqa: ANN401
    """Deliver these one after the other; what became of them, and how often the handler ran."""
    settled: list[Settlement[object]] = []
    worker = Worker()

    async def main(loop: FastLoop) -> None:
        async with connect(ScriptedEnsemble(loop, 3).hosts) as zk:
            consume = deduplicated(
                Dedup(zk),
                worker.handle,
                key=lambda message: message["id"],
                payload=lambda message: message.get("body"),
                **options,
            )
            settled.extend([await consume(message) for message in messages])

    run(main)
    return settled, worker.runs


def test_a_message_that_comes_twice_is_handled_once_and_acknowledged_twice() -> None:
    """The second delivery is told the value of the first."""
    settled, runs = settle({"id": "a"}, {"id": "a"}, {"id": "b"})

    assert [it.action for it in settled] == [Action.ACK] * 3
    assert [it.outcome and it.outcome.value for it in settled] == [1, 1, 2]
    assert [it.outcome and it.outcome.replayed for it in settled] == [False, True, False]
    assert runs == 2


@pytest.mark.parametrize(
    ("messages", "actions", "runs"),
    [
        ([{"id": "a", "do": "fail"}, {"id": "a"}], ["retry", "ack"], 2),
        ([{"id": "a", "do": "fail for good"}, {"id": "a"}], ["reject", "reject"], 1),
        ([{"id": "a", "body": 1}, {"id": "a", "body": 2}], ["ack", "reject"], 1),
        ([{"no": "id"}, {"id": ""}, {"id": "x" * 256}], ["reject"] * 3, 0),
        ([{"id": "a", "body": object()}], ["reject"], 0),
    ],
)
def test_what_may_fare_better_comes_again_and_what_cannot_is_put_aside(
    messages: list[Message], actions: list[str], runs: int
) -> None:
    """By what is known of the key, not by the type of the handler's mistake."""
    settled, ran = settle(*messages)

    assert ([it.action for it in settled], ran) == (actions, runs)
    assert all((it.error is None) == (it.action == "ack") for it in settled)


@pytest.mark.parametrize(
    ("messages", "options", "actions"),
    [
        ([{"id": "a", "do": "fail"}, {"id": "a"}], {"on_in_doubt": "fail"}, ["retry", "reject"]),
        ([{"id": "a"}, {"id": "a"}], {"reuse": "reject"}, ["ack", "ack"]),
        ([{"id": "a", "do": "too much"}, {"id": "a"}], {"max_inline": 10}, ["ack", "ack"]),
        ([{"id": "a", "do": "fail"}], {"store_exceptions": (OSError,)}, ["reject"]),
        ([{"id": "a", "do": "wait"}], {"execution_timeout": 1.0}, ["retry"]),
    ],
)
def test_the_options_of_the_recipe_hold(
    messages: list[Message], options: dict[str, Any], actions: list[str]
) -> None:
    """Each of them changes what is recorded, and so what the queue is told."""
    assert [it.action for it in settle(*messages, **options)[0]] == actions


def test_a_delivery_that_another_consumer_works_on_comes_again() -> None:
    """With on_conflict="fail" nobody waits; and a consumer that is stopped tells nothing at all."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            first, second = (
                deduplicated(
                    Dedup(each), Worker().handle, key=lambda m: m["id"], on_conflict="fail"
                )
                for each in (zk, other)
            )
            working = asyncio.create_task(_awaited(first({"id": "a", "do": "wait"})))
            await asyncio.sleep(1)
            assert (await second({"id": "a"})).action is Action.RETRY
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert (await second({"id": "a"})).action is Action.ACK

    run(main)


async def _awaited(work: Any) -> Any:  # noqa: ANN401
    return await work


def test_what_was_not_executed_comes_again() -> None:
    """The handler says so itself, and the key is free."""

    async def main(loop: FastLoop) -> None:
        async def handle(_message: str, _ctx: Attempt) -> None:
            raise NotExecuted

        async with connect(ScriptedEnsemble(loop, 3).hosts) as zk:
            consume = deduplicated(Dedup(zk, on_in_doubt="fail"), handle, key=str)
            assert [(await consume("a")).action for _ in range(2)] == [Action.RETRY] * 2

    run(main)
