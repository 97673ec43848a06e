"""Claims: a request that breaks every connection it is sent on is given up, and says so."""

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REQUEST, PASS, Connection, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes.bound import RESENDS_MAX, Bound, Resends
from zabd.model.errors import ConnectionLossError
from zabd.model.ops import Delete, GetData, Op, SetData


def test_a_write_that_breaks_each_connection_is_sent_a_bounded_number_of_times() -> None:
    """It takes the connections of everybody else with it, and no answer ever comes."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)

        def harmful(connection: Connection, op: Op) -> str:
            return LOSE_REQUEST if isinstance(op, SetData | GetData) else PASS

        async with connect(ensemble.hosts) as zk:
            await zk.create("/a", b"")
            ensemble.faults.append(harmful)
            bound = await Bound.now(zk)
            with pytest.raises(ConnectionLossError, match=r"set_data /a: .*17 times.*jute") as lost:
                await bound.insist(SetData("/a", b"", -1))
            assert lost.value.maybe_applied
            assert len(ensemble.seen(SetData)) == RESENDS_MAX + 1
            with pytest.raises(ConnectionLossError, match="get_data /a"):
                await bound.get("/a")
            assert len(ensemble.seen(GetData)) == RESENDS_MAX + 1

    run(main)


def test_a_delete_goes_on_because_what_is_left_behind_blocks_others() -> None:
    """It carries no data that a server could refuse."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        rounds = 2 * RESENDS_MAX

        def unlucky(connection: Connection, op: Op) -> str:
            early = len(ensemble.seen(Delete)) <= rounds
            return LOSE_REQUEST if isinstance(op, Delete) and early else PASS

        async with connect(ensemble.hosts) as zk:
            created = await zk.create_with_stat("/a", b"")
            ensemble.faults.append(unlucky)
            await (await Bound.now(zk)).delete_this("/a", created.stat)
            assert await zk.exists("/a") is None

    run(main)


def test_waiting_for_a_connection_is_not_a_lost_reply() -> None:
    """Only what was sent counts: a session without a server for long is not the request's fault."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        async with connect(ensemble.hosts, timeout=30.0) as zk:
            await zk.create("/a", b"")
            bound = await Bound.now(zk)
            [server] = ensemble.servers
            ensemble.shut(server)
            await wait_until(lambda: not zk.connected)
            loop.call_later(20.0, ensemble.open, server)
            await bound.insist(SetData("/a", b"1", -1), resends=Resends(limit=0))
            assert (await zk.get("/a")).data == b"1"

    run(main)
