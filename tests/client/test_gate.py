"""The gate's driver when the loop is gone: what was not begun ends without a word."""

import gc
import warnings
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, cast

import pytest

from zabd.client.recipes.dedup.gate import Gate, drive


@coroutine
def _suspend() -> Generator[str, None, None]:
    yield "suspended"


class Closed:
    """A gate that never opens; only what `drive` asks of one."""

    failure = None

    async def wait(self) -> None:
        """As a gate's, for ever."""
        while True:
            await _suspend()


class Open(Closed):
    """One that is always open."""

    async def wait(self) -> None:
        """Without a wait."""


def driven(gate: Closed, steps: list[str]) -> Coroutine[Any, Any, None]:
    """A function under this gate, and where it notes its steps."""

    async def work() -> None:
        steps.append("begun")
        try:
            await _suspend()
        finally:
            steps.append("cleaned up")

    return cast("Coroutine[Any, Any, None]", drive(work(), cast("Gate", gate)))


@pytest.mark.parametrize(("gate", "expected"), [(Closed(), []), (Open(), ["begun", "cleaned up"])])
def test_what_is_abandoned_with_its_loop_leaves_no_coroutine_behind(
    gate: Closed, expected: list[str]
) -> None:
    """Whether it had begun or not; nothing warns of it."""
    steps: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        abandoned = driven(gate, steps)
        assert abandoned.send(None) == "suspended"

        abandoned.close()
        del abandoned
        gc.collect()

    assert steps == expected
