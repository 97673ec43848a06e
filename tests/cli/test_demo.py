import asyncio
from random import Random

import pytest

from zabd.cli.demo.deliveries import Deliveries, Delivery, Failure, Outcome
from zabd.cli.demo.resource import Ledger, serve_ledger
from zabd.cli.demo.verdict import Verdict
from zabd.cli.demo.worker import LineStream, RemoteLedger


def outcome_of(delivery: Delivery, *, replayed: bool = False) -> Outcome:
    """A delivery that ended well."""
    return Outcome(delivery, 1, replayed, 1, 1, 1)


def test_the_ledger_refuses_a_lower_token() -> None:
    """The whole of fencing: the highest token seen for a key decides."""
    ledger = Ledger()

    assert ledger.apply("k", 5, worker=1).receipt == 1
    assert ledger.apply("k", 4, worker=2).receipt is None
    assert ledger.apply("k", 5, worker=1).receipt == 2  # the same attempt may act again
    assert ledger.apply("other", 1, worker=2).receipt == 3
    assert [effect.token for effect in ledger.refused] == [4]


def test_asking_the_ledger_raises_the_fence() -> None:
    """What was still on its way when the question was answered must not arrive afterwards."""
    ledger = Ledger()

    assert ledger.find("k", 7) is None
    assert ledger.apply("k", 6, worker=1).receipt is None


def test_the_ledger_answers_over_tcp() -> None:
    """As a service elsewhere would."""

    async def talk() -> list[int | None]:
        ledger = Ledger()
        server, port = await serve_ledger(ledger, "127.0.0.1")
        _, stream = await asyncio.get_running_loop().create_connection(
            LineStream, "127.0.0.1", port
        )
        remote = RemoteLedger(stream)
        answers = [
            await remote.find("k", 1),
            await remote.apply("k", 2),
            await remote.apply("k", 1),
            await remote.find("k", 3),
        ]
        assert stream.transport is not None
        stream.transport.close()
        server.close()
        return answers

    assert asyncio.run(talk()) == [None, 1, None, 1]


def test_every_request_is_delivered_so_often() -> None:
    """A failed delivery is delivered again until it ends well."""

    async def work() -> tuple[Deliveries, list[Delivery]]:
        deliveries = Deliveries(40, 3, Random(1))
        taken: list[Delivery] = []
        while (delivery := await deliveries.take()) is not None:
            taken.append(delivery)
            failed = len(taken) % 10 == 0
            await deliveries.ended(Failure(delivery, 1, "x") if failed else outcome_of(delivery))
        return deliveries, taken

    deliveries, taken = asyncio.run(work())

    assert len(deliveries.outcomes) == 120
    assert len(taken) == 120 + len(deliveries.failures)
    keys = [outcome.delivery.key for outcome in deliveries.outcomes]
    assert {keys.count(key) for key in set(keys)} == {3}
    assert len(set(keys)) == 40


def test_the_limit_holds_deliveries_back() -> None:
    """The last third waits for the act that needs it."""

    async def work() -> int:
        deliveries = Deliveries(20, 2, Random(1))
        deliveries.limit = 10
        for _ in range(10):
            delivery = await deliveries.take()
            assert delivery is not None
            await deliveries.ended(outcome_of(delivery))
        waiting = asyncio.ensure_future(deliveries.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        await deliveries.raise_limit()
        assert await waiting is not None
        return len(deliveries.outcomes)

    assert asyncio.run(work()) == 10


def test_a_fresh_request_can_be_brought_forward() -> None:
    """With all of its copies, so that there is somebody to take over."""

    async def work() -> list[Delivery | None]:
        deliveries = Deliveries(40, 3, Random(1))
        await deliveries.take()
        chosen = await deliveries.bring_forward(1000)
        return [chosen, *[await deliveries.take() for _ in range(3)]]

    chosen, *following = asyncio.run(work())

    assert chosen == following[0]
    assert {delivery.key for delivery in following if delivery} == {chosen.key if chosen else ""}
    assert {delivery.work_ms for delivery in following if delivery} == {1000}


def test_the_verdict_fails_with_one_claim(capsys: pytest.CaptureFixture[str]) -> None:
    """What went wrong is said in a sentence; what is only shown is not judged."""
    verdict = Verdict()
    verdict.add("shown", 7, holds=None)
    verdict.add("kept", "yes", holds=True, wrong="never said")
    assert verdict.passed

    verdict.add("broken", "no", holds=False, wrong="it broke")
    verdict.show()

    assert not verdict.passed
    printed = capsys.readouterr().out
    assert "WRONG: it broke" in printed
    assert "never said" not in printed
    assert "FAILED" in printed
