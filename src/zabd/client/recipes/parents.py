"""Making the znodes that a recipe's own znodes stand below, under the deadline of its caller."""

import asyncio

from zabd.client.recipes.bound import NOT_NOW, NOT_NOW_PAUSE_S, Bound, Resends
from zabd.model.acl import Acl
from zabd.model.errors import ConnectionLossError, OperationTimeoutError


async def ensure_path(bound: Bound, path: str, acl: tuple[Acl, ...] | None = None) -> None:
    """As `Client.ensure_path`, but until it is there or the session ends.

    The client's `operation_timeout` is for its user's operations, and is no end of this one.

    Raises:
        ConnectionLossError: its connection broke more often than `Resends` allow.
        SessionExpiredError: the session ended.
    """
    resends = Resends()
    while True:
        try:
            await bound.client.ensure_path(path, acl=acl)
        except ConnectionLossError as error:
            await resends.pause(error)
        except NOT_NOW:
            await asyncio.sleep(NOT_NOW_PAUSE_S)
        except OperationTimeoutError:
            pass  # the look below waits for a server, or for the end of the session
        else:
            return
        if await bound.stat(path) is not None:
            return
