"""The examples do what their first lines say."""

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zabd.cli.words import ask
from zabd.client import Client, connect
from zabd.testing import ZabEnsemble

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 30

pytestmark = pytest.mark.ensemble


def example(name: str) -> ModuleType:
    """The example's module, fresh."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(claim: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever it returns
    """On a loop, within bounds."""

    async def bounded() -> Any:  # noqa: ANN401
        async with asyncio.timeout(PATIENCE_S):
            return await claim()

    return asyncio.run(bounded())


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Poll what another task makes true."""
    while not await condition():  # noqa: ASYNC110 - it becomes true at the ensemble
        await asyncio.sleep(0.01)


def received(server: ZabEnsemble) -> int:
    """How many requests the member has had."""
    answer = ask("127.0.0.1", server.member(1).client_port, "srvr")
    return next(int(line.split()[1]) for line in answer.splitlines() if "Received:" in line)


@pytest.mark.zab(tickTime=3000)
def test_a_registry_routes_without_a_request(zab_server: ZabEnsemble) -> None:
    """Routing is a look into memory; idle it costs nothing, and a key keeps its instance."""
    registry = example("service_registry")

    async def claim() -> None:
        async with (
            connect(zab_server.hosts, timeout=60) as zk,
            connect(zab_server.hosts, timeout=60) as other,
            registry.Router(zk) as router,
            registry.registered(other, "a:1"),
        ):
            async with registry.registered(other, "b:1"):
                await router.wait_for(2)
                before, asked = received(zab_server), received(zab_server)
                routes = {key: router.route(key) for key in map(str, range(1000))}
                await asyncio.sleep(1)  # sessions of 60 s are pinged after 20 s
                assert received(zab_server) - asked == asked - before  # our own questions
            await router.wait_for(1)
            assert router.rebuilt <= 5  # no path, nobody, one, two, one
            assert set(routes.values()) == {"a:1", "b:1"}
            assert all(router.route(key) == "a:1" for key in routes)

    run(claim)


def test_no_change_of_the_configuration_is_lost(zab_server: ZabEnsemble) -> None:
    """Ten writers at once, each with its own name: all ten are there."""
    config = example("dynamic_config")

    async def claim() -> None:
        async with connect(zab_server.hosts) as zk, connect(zab_server.hosts) as other:
            changes = [
                config.update(client, lambda old, name=name: {**old, name: 1})
                for name, client in zip("abcdefghij", [zk, other] * 5, strict=True)
            ]
            await asyncio.gather(*changes)
            async for settings in config.follow(zk):
                assert sorted(settings) == list("abcdefghij")
                break

    run(claim)


def test_another_master_goes_on_where_the_first_failed(zab_ensemble: ZabEnsemble) -> None:
    """Sick workers get nothing; a new master has a higher token; a late one is refused."""
    app = example("master_failover")

    async def shares(zk: Client) -> dict[str, int]:
        if await zk.exists(app.ASSIGNMENT) is None:
            return {}
        return {name: len(them) for name, them in (await app.assignment(zk))["shares"].items()}

    async def claim() -> None:
        async with connect(zab_ensemble.hosts) as zk, connect(zab_ensemble.hosts) as second:
            first = connect(zab_ensemble.hosts)
            await first.start()
            masters = [asyncio.create_task(app.stand(first, "m1"))]
            async with app.worker(zk, "w1"), app.worker(zk, "w2") as w2:

                async def shared(wanted: dict[str, int]) -> None:
                    await until(lambda: _equals(shares(zk), wanted))

                await shared({"w1": 4, "w2": 4})
                masters.append(asyncio.create_task(app.stand(second, "m2")))
                token = (await app.assignment(zk))["token"]
                await w2.set(b"sick")
                await shared({"w1": 8})

                masters[0].cancel()
                await first.close()
                await w2.set(b"healthy")
                await shared({"w1": 4, "w2": 4})
                assert (await app.assignment(zk))["token"] > token
                with pytest.raises(RuntimeError, match="later master"):
                    await app.assign(zk, token, {})
            for master in masters:
                master.cancel()
                with suppress(asyncio.CancelledError):
                    await master

    run(claim)


async def _equals(value: Awaitable[object], wanted: object) -> bool:
    return await value == wanted


def test_a_task_outlives_its_worker(zab_server: ZabEnsemble) -> None:
    """The first worker dies in the middle; each task is done, the urgent one first."""
    scheduler = example("task_scheduler")
    done: list[str] = []

    async def perform(task: str, _item: object) -> None:
        done.append(task)

    async def claim() -> None:
        async with connect(zab_server.hosts) as zk:
            await scheduler.schedule(zk, "later")
            await scheduler.schedule(zk, "urgent", priority=1)
            begun = asyncio.Event()

            async def die(_task: str, _item: object) -> None:
                begun.set()
                await asyncio.Event().wait()

            async with connect(zab_server.hosts) as doomed:
                failing = asyncio.create_task(scheduler.work(doomed, die))
                await begun.wait()
                failing.cancel()
                with suppress(asyncio.CancelledError):
                    await failing
            working = asyncio.create_task(scheduler.work(zk, perform))
            await until(lambda: _equals(_length(), 2))
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    async def _length() -> int:
        return len(done)

    run(claim)
    assert done == ["urgent", "later"]


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file that workers write to."""
    return tmp_path / "effects"


def test_two_workers_handle_a_request_once(zab_server: ZabEnsemble, effects: Path) -> None:
    """One executes, the other is told what came out."""
    acquired: list[int] = []

    async def worker() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLES / "dedup-worker.py"),
            *(zab_server.hosts, "req-42", "pay 7", "0.1", str(effects)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, log = await process.communicate()
        acquired.append(log.count(b'"event": "acquired"'))
        return output.decode()

    async def claim() -> list[str]:
        return list(await asyncio.gather(worker(), worker()))

    outputs = run(claim)

    assert sorted(output.split()[1] for output in outputs) == ["replayed=False", "replayed=True"]
    assert max(acquired) == 1
    assert len(effects.read_text(encoding="utf-8").splitlines()) == 2


def test_a_topic_has_one_primary_or_none_while_it_is_off(zab_server: ZabEnsemble) -> None:
    """The switch stops it for everybody; a backup takes over from a process that is gone."""
    topics = example("topic_primary")
    leading: list[str] = []

    def primary_of(name: str) -> Callable[[str, object], Awaitable[None]]:
        async def primary(_topic: str, _term: object) -> None:
            leading.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                leading.remove(name)

        return primary

    async def led_by(*names: str) -> None:
        async def is_so() -> bool:
            assert len(leading) <= 1
            return leading in [[name] for name in names] or (not names and not leading)

        await until(is_so)

    async def claim() -> None:
        async with connect(zab_server.hosts) as n1, connect(zab_server.hosts) as n2:
            parts = [
                asyncio.create_task(topics.take_part(zk, name, "orders", primary_of(name)))
                for name, zk in (("n1", n1), ("n2", n2))
            ]
            await led_by("n1", "n2")
            await topics.switch(n1, "orders", on=False)
            await led_by()
            await topics.switch(n1, "orders", on=True)
            await led_by("n1", "n2")

            first, other = (0, "n2") if leading == ["n1"] else (1, "n1")
            for part in (parts[first], parts[1 - first]):
                part.cancel()
                with suppress(asyncio.CancelledError):
                    await part
                if part is parts[first]:
                    await led_by(other)

    run(claim)


def test_an_order_that_is_sent_to_another_server_again_is_placed_once(
    zab_server: ZabEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second server replays what the first has recorded, and refuses another order."""
    api = example("idempotent_api")

    first, second, third = run(lambda: api.main(zab_server.hosts))

    assert [first.status_code, second.status_code, third.status_code] == [201, 201, 422]
    assert first.text == second.text
    assert second.headers["idempotent-replayed"] == "true"
    assert capsys.readouterr().out.endswith("1 order placed\n")


def test_messages_that_come_twice_are_handled_once(zab_server: ZabEnsemble) -> None:
    """By either consumer; what makes no sense is put aside each time that it comes."""
    queue = example("idempotent_consumer")

    books = run(lambda: queue.main(zab_server.hosts))

    assert sorted(books.paid) == [f"payment-{number}" for number in range(10)]
    assert books.dead == ["payment-x", "payment-x"]
