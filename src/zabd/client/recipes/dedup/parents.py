"""The znode of a key: a container where the server has them, so that it goes when it is empty."""

import logging
from collections.abc import Awaitable, Callable

from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.parents import ensure_path
from zabd.client.recipes.place import Place
from zabd.model.acl import Acl
from zabd.model.errors import (
    ClosingError,
    ConnectionLossError,
    KeeperError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from zabd.model.ops import CreateContainer, CreateMode
from zabd.model.paths import parent_of

log = logging.getLogger("zabd.dedup")


def make_parent(path: str, acl: tuple[Acl, ...]) -> Callable[[Bound], Awaitable[None]]:
    """What makes a key's znode, and the base above it; that it exists is success."""
    op = CreateContainer(path, b"", acl, CreateMode.CONTAINER)

    async def make(bound: Bound) -> None:
        resends = Resends()
        while True:
            try:
                await bound.multi([op])
            except NodeExistsError:
                return
            except NoNodeError:
                # The base is an ordinary znode: it must not vanish with the last key.
                await ensure_path(bound, parent_of(path))
            except ConnectionLossError as error:
                await resends.pause(error)
            else:
                return

    return make


async def retire_overflowed(place: Place) -> None:
    """A parent whose counter has overflowed is made anew: delete it as soon as it is empty."""
    if place.name and place.sequence < 0:
        # Not empty, or the session is over: whoever comes next does it.
        try:
            await place.bound.delete(place.parent)
        except (NotEmptyError, SessionExpiredError, ClosingError):
            return
        except KeeperError:
            # What has ended here has ended well: that must not look like its failure.
            log.exception("cannot delete %s, whose sequence overflowed", place.parent)
