"""Dynamic configuration: many may change it, nobody overwrites a change that he has not seen.

    python examples/dynamic_config.py HOSTS set limit 10
    python examples/dynamic_config.py HOSTS follow

A change is a read, and a write that holds only for the version that was read. Whoever comes second
is told so, reads again, and decides again.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from zabd.client import Client, connect
from zabd.client.recipes import DataWatch
from zabd.model import BadVersionError, ConnectionLossError, NodeExistsError, NoNodeError

CONFIG = "/config/app"
Settings = Mapping[str, Any]


async def update(zk: Client, change: Callable[[Settings], Settings]) -> Settings:
    """Apply `change` to whatever the settings are; it is called again when somebody was faster.

    It has to be a function of the settings alone. When a reply is lost the change may have been
    made: it is applied to what is there then, so let it set values rather than add to them.
    """
    while True:
        try:
            data, stat = await zk.get(CONFIG)
        except NoNodeError:
            version, settings = None, change({})
        else:
            version, settings = stat.version, change(json.loads(data or b"{}"))
        raw = json.dumps(settings, sort_keys=True).encode()
        try:
            if version is None:
                await zk.create(CONFIG, raw, make_parents=True)
            else:
                await zk.set(CONFIG, raw, version=version)
        except (BadVersionError, NodeExistsError, NoNodeError, ConnectionLossError):
            continue
        return settings


async def follow(zk: Client) -> AsyncIterator[Settings]:
    """Yield the settings now and after each change; one read for each, nothing in between."""
    async for value in DataWatch(zk, CONFIG):
        yield {} if value is None else json.loads(value.data)


async def main(hosts: str, action: str, *arguments: str) -> None:
    """Set one value, or print the settings whenever they change."""
    async with connect(hosts) as zk:
        if action == "set":
            name, value = arguments
            print(await update(zk, lambda settings: {**settings, name: json.loads(value)}))
        else:
            async for settings in follow(zk):
                print(settings, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
