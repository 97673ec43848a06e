"""Where the other members are: their names, looked up so that one of them never delays the rest.

A look-up is a call of the system's resolver, made by a few threads that the whole process shares.
It cannot be taken back, and without an answer it lasts for half a minute: a name that is dialled
once a second would soon have all the threads.

Invariants
    D1  Of each name at most one look-up is under way, however often it is dialled.
    D2  A name that was found once can be dialled whatever its server does now: where there is no
        answer in time, or no good one, the addresses that it had last are tried.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence

from zabd.server.loop import Loop


class Names:
    """Connects to hosts by name; `patience_ms` is how long known addresses wait for newer ones."""

    def __init__(self, loop: Loop, patience_ms: int) -> None:
        self._loop = loop
        self._patience_s = patience_ms / 1000
        self._known: dict[str, Sequence[str]] = {}
        self._look_ups: dict[str, asyncio.Task[OSError | None]] = {}

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        """As the loop's `create_connection`: each address in turn, OSError if none is any good."""
        addresses = [host] if _is_address(host) else await self._addresses(host)
        for address in addresses[:-1]:
            try:
                await self._loop.create_connection(protocol_factory, address, port)
            except OSError:
                continue  # the last one says why
            return
        await self._loop.create_connection(protocol_factory, addresses[-1], port)

    def close(self) -> None:
        """Wait for no answer any more."""
        for look_up in self._look_ups.values():
            look_up.cancel()

    async def _addresses(self, host: str) -> Sequence[str]:
        look_up = self._look_ups.get(host)
        if look_up is None:
            look_up = self._look_ups[host] = self._loop.create_task(self._look_up(host))
        # Not awaited itself: who gives up waiting must not cancel it, for it goes on all the same.
        await asyncio.wait({look_up}, timeout=self._patience_s if host in self._known else None)
        if host not in self._known:
            error = look_up.result()
            assert error is not None, "what was found is known"
            raise error
        return self._known[host]

    async def _look_up(self, host: str) -> OSError | None:
        try:
            found = await self._loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        except OSError as error:
            return error
        except UnicodeError as error:
            return OSError(f"{host!r} is no name of a host: {error}")
        finally:
            del self._look_ups[host]
        self._known[host] = list(dict.fromkeys(str(info[4][0]) for info in found))
        return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
