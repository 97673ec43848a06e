"""Work that is split among the members of a party: each share has one worker at a time.

``await Partitioner(zk, "/jobs", ["a", "b", "c"], identifier="w1").run(work)`` joins the party, and
runs ``work(share)`` for each partition that falls to us, as long as it does.

Invariants
    I1  A partition's work runs under its lock, and has ended before the lock is given up: two
        members never work on the same one, however differently they see the party.
    I2  Once the party is steady each partition has a worker, and the shares are even.

Znodes, as kazoo's `SetPartitioner`: ``<path>/party/<id>-<identifier>``, ephemeral, and a `Lock` at
``<path>/locks/<partition>`` for each. Cost: those of `Party` and `Lock`; 1 read by each member for
each change of the party, and the release and the taking of what moves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from zabd.client.client import Client
from zabd.client.recipes.election import Election, Term
from zabd.client.recipes.party import Party
from zabd.model.acl import Acl
from zabd.model.paths import check_path, join

log = logging.getLogger("zabd.client.recipes")

Divide = Callable[[str, Sequence[str], Sequence[str]], Sequence[str]]
"""Which partitions fall to a member: (its identifier, all members, all partitions)."""


def round_robin(member: str, members: Sequence[str], partitions: Sequence[str]) -> Sequence[str]:
    """Every n-th partition, by the order of the identifiers, as kazoo does by default."""
    workers = sorted(members)
    return sorted(partitions)[workers.index(member) :: len(workers)]


class Share:
    """One partition that is ours for now."""

    def __init__(self, partition: str, term: Term) -> None:
        self.partition = partition
        self._term = term

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as can be known here and now: see `verify`."""
        return self._term.leading

    @property
    def fencing_token(self) -> int:
        """A number that rises with every worker of this partition."""
        return self._term.fencing_token

    async def verify(self) -> None:
        """Ask the leader of the ensemble whether it is ours at this moment.

        Raises:
            LockLostError: it is not.
        """
        await self._term.verify()


class Partitioner:
    """Splits `partitions` among those who run it on the same `path`.

    All have to name the same partitions, and have identifiers of their own. The party is divided
    when it has been steady for `settle` seconds.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        partitions: Sequence[str],
        *,
        identifier: str = "",
        divide: Divide = round_robin,
        settle: float = 1.0,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.partitions = list(partitions)
        number = f"{client.rng.getrandbits(32):08x}"
        self.identifier = identifier or f"{client.identity.host}-{client.identity.pid}-{number}"
        self._client = client
        self._divide = divide
        self._settle = settle
        self._acl = acl
        self._party = Party(
            client, join(path, "party"), identifier=self.identifier, shallow=True, acl=acl
        )
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._owned: dict[str, Share] = {}

    @property
    def owned(self) -> list[str]:
        """The partitions that are ours now, sorted."""
        return sorted(name for name, share in self._owned.items() if share.held)

    async def run(self, work: Callable[[Share], Awaitable[object]]) -> None:
        """Work until cancelled; what `work` raises is raised, and ends everything.

        `work` is cancelled when its partition moves, or its session is lost. When it returns, the
        partition stays ours, idle, until it moves.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # When we are cancelled at the same moment nobody else looks at it.
        failed.add_done_callback(lambda done: done.cancelled() or done.exception())
        dividing: asyncio.Task[None] | None = None
        try:
            await self._party.join()
            dividing = self._client.spawn(self._follow(work, failed))
            await asyncio.wait([dividing, failed], return_when=asyncio.FIRST_COMPLETED)
            for each in (failed, dividing):
                if each.done():
                    each.result()
        finally:
            failed.cancel()
            # To its end, even if who waits for it is cancelled once more.
            await asyncio.shield(self._client.spawn(self._end(dividing)))

    async def _end(self, dividing: asyncio.Task[None] | None) -> None:
        """Work on nothing any more, and leave."""
        if dividing is not None:
            dividing.cancel()
            await asyncio.wait([dividing])
        await self._stop(list(self._workers))
        await self._party.leave()

    async def _follow(
        self, work: Callable[[Share], Awaitable[object]], failed: asyncio.Future[None]
    ) -> None:
        """Divide anew whenever the party has changed and is steady again."""
        latest: list[list[str]] = []
        changed = asyncio.Event()

        async def listen() -> None:
            async with aclosing(self._party.watch()) as changes:
                async for members in changes:
                    latest[:] = [members]
                    changed.set()

        listening = self._client.spawn(listen())
        # Without it nothing would ever change: its end is ours.
        listening.add_done_callback(lambda _: changed.set())
        try:
            while True:
                await changed.wait()
                while changed.is_set():
                    changed.clear()
                    await asyncio.sleep(self._settle)
                if listening.done():
                    listening.result()
                    return
                [members] = latest
                # Between two sessions we are no member, and nothing falls to us.
                mine = list(self._shares(members)) if self.identifier in members else []
                await self._stop([name for name in self._workers if name not in mine])
                for partition in mine:
                    if partition not in self._workers:
                        self._start(partition, work, failed)
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _shares(self, members: Sequence[str]) -> Sequence[str]:
        return self._divide(self.identifier, members, self.partitions)

    def _start(
        self,
        partition: str,
        work: Callable[[Share], Awaitable[object]],
        failed: asyncio.Future[None],
    ) -> None:
        path = join(join(self.path, "locks"), partition)
        election = Election(self._client, path, identifier=self.identifier, acl=self._acl)

        async def lead(term: Term) -> None:
            share = self._owned[partition] = Share(partition, term)
            try:
                await work(share)
                await asyncio.get_running_loop().create_future()  # idle, and ours
            finally:
                del self._owned[partition]

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and not failed.done():
                failed.set_exception(task.exception() or AssertionError("it serves for ever"))

        task = self._workers[partition] = self._client.spawn(election.serve(lead))
        task.add_done_callback(ended)

    async def _stop(self, partitions: Sequence[str]) -> None:
        """End the work on these, and give up their locks."""
        tasks = [self._workers.pop(partition) for partition in partitions]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
