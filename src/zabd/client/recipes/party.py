"""Who is there: each member has an ephemeral znode, and everybody sees them come and go.

``async with Party(zk, "/workers", identifier="w1") as party: await party.members()``

Znodes, as kazoo's ``Party``: ``<path>/<id>__party__`` with the identifier as data, or as its
``ShallowParty`` with `shallow`: ``<path>/<id>-<identifier>``, which costs no reads but the list.
Cost: joining is that of `PersistentNode`; a list is 1 read, and 1 for each member that is new.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.recipes.node_watch import READ_AGAIN_S, ChildrenWatch
from zabd.client.recipes.persistent_node import PersistentNode
from zabd.model.acl import Acl
from zabd.model.errors import (
    ConnectionLossError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from zabd.model.paths import check_path, join

log = logging.getLogger("zabd.client.recipes")

_ID_BITS = 128
_SUFFIX = "__party__"


class Party:
    """A party on the znode `path`, which is created when missing.

    A member stays one when its session is lost and another one follows; `joined` says whether the
    ensemble has its znode now. Who only looks at the members does not join.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        shallow: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.identifier = identifier
        self._client = client
        self._shallow = shallow
        number = f"{client.rng.getrandbits(_ID_BITS):032x}"
        name = f"{number}-{identifier}" if shallow else number + _SUFFIX
        data = b"" if shallow else identifier.encode()
        self._node = PersistentNode(client, join(path, name), data, acl=acl)
        self._known: dict[str, str] = {}

    @property
    def joined(self) -> bool:
        """Whether our znode stands, as far as can be known here and now."""
        return self._node.present

    async def join(self, *, timeout: float | None = None) -> None:
        """Become a member.

        Raises:
            TimeoutError: it took longer than `timeout` seconds; we are not a member then, and a
                znode of ours that is on its way all the same is taken back in the background.
        """
        await self._node.start()
        try:
            await self._node.wait_present(timeout=timeout)
        except BaseException:
            self._node.close_soon()
            raise

    async def leave(self) -> None:
        """Stop being a member; returns once the znode is gone, or the session with it."""
        await self._node.close()

    async def members(self) -> list[str]:
        """The identifiers of the members now, sorted."""
        try:
            names = await self._client.get_children(self.path)
        except NoNodeError:
            return []
        return await self._identifiers(names)

    async def watch(self) -> AsyncGenerator[list[str], None]:
        """Yield the members' identifiers, sorted, now and after each change.

        To leave it early, close it: ``async with aclosing(party.watch()) as changes``.
        """
        watch = ChildrenWatch(self._client, self.path)
        try:
            async for names in watch:
                yield await self._insist_identifiers(names or [])
        finally:
            watch.close()

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    async def _insist_identifiers(self, names: list[str]) -> list[str]:
        """As `_identifiers`, also across partitions and the loss of the session."""
        while True:
            try:
                return await self._identifiers(names)
            except (ConnectionLossError, OperationTimeoutError, SessionExpiredError) as error:
                if self._client.closed:
                    raise
                log.info("reading the members of %s again: %s", self.path, error)
            await asyncio.sleep(READ_AGAIN_S)

    async def _identifiers(self, names: list[str]) -> list[str]:
        if self._shallow:
            return sorted(name.partition("-")[2] for name in names)
        mine = [name for name in names if _SUFFIX in name]
        # A member's data never changes, so each znode is read once.
        known = {name: self._known[name] for name in mine if name in self._known}
        for name in mine:
            if name not in known:
                try:
                    data, _ = await self._client.get(join(self.path, name))
                except NoNodeError:
                    continue
                known[name] = (data or b"").decode(errors="replace")
        self._known = known
        return sorted(known.values())
