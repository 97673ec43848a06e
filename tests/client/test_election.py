"""Claims about elections, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import (
    Election,
    LeaderLatch,
    LeadershipLostError,
    LockLostError,
    LockTimeoutError,
    Term,
    election,
)
from zabd.model.errors import ErrorCode, NoAuthError
from zabd.model.ops import Delete, GetChildren

PATH = "/leader"


def nodes(ensemble: ScriptedEnsemble) -> list[str]:
    """The candidates, as the leader has them."""
    node = ensemble.leader.nodes.get(PATH)
    return list(node.children) if node else []


def test_one_leads_at_a_time_and_terms_have_rising_tokens() -> None:
    """This is what an election is."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        leading, terms = 0, []

        async def lead(term: Term) -> str:
            nonlocal leading
            leading += 1
            assert leading == 1
            await term.verify()
            terms.append(term.fencing_token)
            await asyncio.sleep(1)
            leading -= 1
            return "done"

        async def stand() -> None:
            async with connect(ensemble.hosts) as zk:
                assert await Election(zk, PATH).run(lead) == "done"

        await asyncio.gather(*(stand() for _ in range(5)))
        assert terms == sorted(set(terms))
        assert len(terms) == 5
        assert not nodes(ensemble)

    run(main)


def test_the_loss_of_the_session_cancels_the_leader() -> None:
    """By the local lease: before the ensemble can have another one."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts, timeout=12.0)
        await zk.start()
        ended: list[float] = []

        async def lead(term: Term) -> None:
            loop.black_hole = True
            try:
                await asyncio.sleep(1000)
            finally:
                assert not term.leading
                ended.append(loop.time())

        with pytest.raises(LeadershipLostError):
            await Election(zk, PATH).run(lead)
        assert ended[0] < 12
        await zk.close(timeout=0)

    run(main)


def test_what_the_leader_raises_ends_its_term_and_is_raised() -> None:
    """And the next one leads."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:

            async def fail(_: Term) -> None:
                raise OSError("no disk")

            with pytest.raises(OSError, match="no disk"):
                await Election(zk, PATH).run(fail)
            assert not nodes(ensemble)

    run(main)


def test_a_selector_leads_term_after_term_even_with_another_session() -> None:
    """Whoever waits gets the next term."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        terms: list[str] = []

        async def serve(name: str) -> None:
            async def lead(_: Term) -> None:
                terms.append(name)
                await asyncio.sleep(1)

            async with connect(ensemble.hosts) as zk:
                await Election(zk, PATH, identifier=name).serve(lead)

        async with connect(ensemble.hosts) as watcher:
            tasks = [asyncio.ensure_future(serve(name)) for name in "ab"]
            await wait_until(lambda: len(terms) == 4)
            assert sorted(terms[:2]) == ["a", "b"]
            assert terms[:2] == terms[2:]
            names = await Election(watcher, PATH).contenders()
            assert sorted(names) == ["a", "b"]
            [victim, *_] = [s for s in ensemble.sessions if s != watcher.session_id]
            ensemble.expire(victim)
            count = len(terms)
            await wait_until(lambda: set(terms[count:]) == {"a", "b"})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert not nodes(ensemble)

    run(main)


def test_a_latch_says_whether_it_leads_and_stands_again() -> None:
    """Also with the next session."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with (
            connect(ensemble.hosts) as one,
            connect(ensemble.hosts) as two,
            LeaderLatch(one, PATH, identifier="one") as first,
        ):
            await first.wait_leading(timeout=5)
            async with LeaderLatch(two, PATH, identifier="two") as second:
                with pytest.raises(TimeoutError):
                    await second.wait_leading(timeout=1)
                assert await second.contenders() == ["one", "two"]
                token = first.fencing_token
                ensemble.expire(one.session_id)
                await second.wait_leading(timeout=5)
                assert second.fencing_token > token
                await second.verify()
                assert not first.leading
            await first.wait_leading(timeout=5)
            assert [await anext(first.changes) for _ in range(3)] == [True, False, True]
        assert not nodes(ensemble)

    run(main)


def test_a_candidate_that_gives_up_leaves_nothing() -> None:
    """Whoever stands behind it must not wait for it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:

            async def lead(_: Term) -> None:
                with pytest.raises(LockTimeoutError):
                    await Election(two, PATH).run(lead, timeout=1)

            await Election(one, PATH).run(lead)
            await wait_until(lambda: not nodes(ensemble))

    run(main)


def test_a_leader_that_is_cancelled_twice_ends_its_work_before_it_stands_down() -> None:
    """Who gave up waiting for the end must not let the next leader in before it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            seen: list[int] = []

            async def lead(_: Term) -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    await asyncio.sleep(3)
                    seen.append(len(nodes(ensemble)))

            running = asyncio.ensure_future(Election(zk, PATH).run(lead))
            await asyncio.sleep(1)
            for _ in range(2):
                running.cancel()
                await asyncio.sleep(1)
            assert running.cancelled()
            await wait_until(lambda: not nodes(ensemble))
            assert seen == [1]

    run(main)


def test_a_session_that_ends_with_the_last_reply_makes_no_leader() -> None:
    """Latch and selector stand again, as they do when the session ends later."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        terms: list[int] = []

        async def lead(term: Term) -> None:
            terms.append(term.fencing_token)
            await asyncio.sleep(1)

        async with connect(ensemble.hosts, timeout=12.0) as zk:
            ensemble.stall_after(GetChildren, PATH, 20)
            async with LeaderLatch(zk, PATH) as latch:
                await latch.wait_leading(timeout=30)
            ensemble.stall_after(GetChildren, PATH, 20)
            serving = asyncio.ensure_future(Election(zk, PATH).serve(lead))
            await wait_until(lambda: len(terms) == 2)
            serving.cancel()
            await asyncio.wait([serving])
            assert not nodes(ensemble)
            assert len(ensemble.expired) == 2

    run(main)


def test_a_term_that_ends_as_it_begins_is_stood_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidate has no term to end, and would keep everybody out."""

    def lost(_: object) -> Term:
        raise LockLostError("the lease ran out")

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            standing = Election(zk, PATH)
            with monkeypatch.context() as patched:
                patched.setattr(election, "Term", lost)
                with pytest.raises(LeadershipLostError):
                    await standing.stand()
            assert not nodes(ensemble)
            await standing.stand(timeout=1)
            await standing.stand_down()

    run(main)


def test_a_function_that_raises_when_it_is_called_ends_its_term() -> None:
    """It need not be a coroutine function."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:

            def fail(_: Term) -> asyncio.Future[None]:
                raise OSError("no disk")

            with pytest.raises(OSError, match="no disk"):
                await Election(zk, PATH).run(fail)
            assert not nodes(ensemble)

    run(main)


def test_a_latch_that_cannot_stand_down_says_so() -> None:
    """Others wait for its znode."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            latch = LeaderLatch(zk, PATH)
            await latch.start()
            await latch.wait_leading(timeout=1)
            ensemble.refused[Delete] = ErrorCode.NO_AUTH
            with pytest.raises(NoAuthError):
                await latch.close()

    run(main)


def test_a_leader_that_verifies_loses_its_term_with_the_session_and_not_the_service() -> None:
    """To verify before each irreversible step is what a careful leader does."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        terms: list[int] = []

        async def lead(term: Term) -> None:
            terms.append(term.fencing_token)
            while True:
                await term.verify()

        async with connect(ensemble.hosts) as zk:
            serving = asyncio.ensure_future(Election(zk, PATH).serve(lead))
            for count in (1, 2, 3):
                await wait_until(lambda count=count: len(terms) == count)
                if count == 1:
                    ensemble.expire(zk.session_id)
                elif count == 2:
                    await zk.delete(f"{PATH}/{nodes(ensemble)[0]}")
            assert not serving.done()
            serving.cancel()
            await asyncio.wait([serving])

    run(main)


def test_another_lock_that_a_leader_loses_is_no_loss_of_its_term() -> None:
    """That is for whoever asked it to lead."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        async def lead(_: Term) -> None:
            raise LockLostError("another one")

        async with connect(ensemble.hosts) as zk:
            with pytest.raises(LockLostError, match="another one"):
                await Election(zk, PATH).serve(lead)

    run(main)


def test_a_term_ends_when_its_client_is_closed() -> None:
    """Its session has ended: the next one leads already."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts)
        await zk.start()
        leads = asyncio.Event()

        async def lead(_: Term) -> None:
            leads.set()
            await asyncio.sleep(1000)

        running = asyncio.ensure_future(Election(zk, PATH).run(lead))
        await leads.wait()
        await zk.close()
        async with asyncio.timeout(5):
            with pytest.raises(LeadershipLostError):
                await running
        assert not nodes(ensemble)

    run(main)
