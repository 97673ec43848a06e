"""A call of the blocking facade ends, whatever the operation in it waits for."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any

import pytest

from zabd.client.calls import Reply, StepCall


async def begun(work: Coroutine[Any, Any, str]) -> StepCall[str]:
    """A call that has taken its first step."""
    call = StepCall(work)
    call.start(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return call


def test_an_operation_may_let_others_have_a_turn() -> None:
    """A bare yield is a step like any other."""

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> StepCall[str]:
        call = await begun(work())
        await asyncio.sleep(0)
        return call

    assert asyncio.run(main()).wait() == "done"


def test_a_reply_that_somebody_else_cancels_ends_the_call() -> None:
    """Its thread would wait for ever."""

    async def main() -> StepCall[str]:
        reply: Reply[str] = Reply()

        async def work() -> str:
            return await reply

        call = await begun(work())
        reply.cancel()
        await asyncio.sleep(0)
        assert call.ended
        return call

    with pytest.raises(CancelledError):
        asyncio.run(main()).wait()
