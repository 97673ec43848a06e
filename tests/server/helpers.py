"""What several of the room's tests need: a loop to run on, ports, configurations, a trace."""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from zabd.cli.ports import free_ports
from zabd.server.config import ServerConfig
from zabd.server.zoo_cfg import Member

PATIENCE_S = 10.0


def _loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of this machine: a member runs unchanged on each."""
    loops: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    if importlib.util.find_spec("uvloop") is not None:
        loops.append(importlib.import_module("uvloop").new_event_loop)
    return loops


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run one test on a new loop of each kind; it fails rather than hang."""

    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await test()

    for new_loop in _loops():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (what is awaited is outside of any loop)
            await asyncio.sleep(0.001)


def members(count: int, observers: int = 0) -> tuple[Member, ...]:
    """An ensemble on loopback, on ports that are free; the observers come last."""
    ports = free_ports(3 * (count + observers))
    return tuple(
        Member(
            id=number,
            host="127.0.0.1",
            quorum_port=ports.pop(),
            election_port=ports.pop(),
            observer=number > count,
            client_host="127.0.0.1",
            client_port=ports.pop(),
        )
        for number in range(1, count + observers + 1)
    )


def config_of(member_id: int, ensemble: tuple[Member, ...], **more: object) -> ServerConfig:
    """The configuration of one of them."""
    me = next(member for member in ensemble if member.id == member_id)
    assert me.client_port is not None
    base = ServerConfig(
        member_id=member_id,
        members=ensemble,
        data_dir="unused",
        client_port=me.client_port,
        tick_ms=200,
        words=None,
    )
    return replace(base, **more)  # type: ignore[arg-type]


class Trail:
    """A trace that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        self.events.append((event, dict(fields)))

    def of(self, event: str) -> list[dict[str, object]]:
        """The fields of every event of this name."""
        return [fields for name, fields in self.events if name == event]
