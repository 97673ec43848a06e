"""`zab_async_client` where pytest-asyncio runs the coroutine tests.

It wants its asynchronous fixtures marked, so this is a second plugin, registered only where it is
active (`zabd.testing.plugin`).
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from zabd.testing.plugin import connected_client

if TYPE_CHECKING:
    from zabd.client import Client


@pytest_asyncio.fixture
async def _zab_client_of_asyncio(request: pytest.FixtureRequest) -> "AsyncIterator[Client]":
    async for client in connected_client(request):
        yield client
