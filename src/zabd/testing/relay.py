"""A relay between two parties: what goes through it can be held up, let go and broken off.

Parties are given a relay's port in place of the port they mean. A cut is silence, as of a cable
that was pulled: connections stay, nothing passes, a new connection reaches nobody. Once it is
healed what was under way arrives, as TCP would have repeated it.

Invariants
    R1  After `cut` has returned no byte passes that route until `heal`.
    R2  At most READ_BYTES of asyncio wait here for a slow reader: then its sender is not read.
"""

import asyncio
from typing import Final, cast

LOOPBACK: Final = "127.0.0.1"


class _End(asyncio.Protocol):
    """One of the two connections of a pair."""

    def __init__(self, route: "_Route", other: "_End | None" = None) -> None:
        self._route = route
        self._transport: asyncio.Transport | None = None
        self._full = False
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._route.ends[self] = None
        if self.other is None:
            self._transport.pause_reading()
            self._route.admit(self)
        else:
            self.other.other = self
            self.other.settle()
            self.settle()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "who has no partner is not read"
        self.other.write(data)

    def eof_received(self) -> bool:
        if self.other is not None:
            self.other.write_eof()
        return True  # the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._route.ends.pop(self, None)
        self._transport = None
        if self.other is not None:
            self.other.close()

    def pause_writing(self) -> None:
        self._full = True
        if self.other is not None:
            self.other.settle()

    def resume_writing(self) -> None:
        self._full = False
        if self.other is not None:
            self.other.settle()

    def settle(self) -> None:
        """Read or do not read, whichever is right now."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._route.cut or self.other is None or self.other.full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def full(self) -> bool:
        """Whether more must not be written to it for now."""
        return self._full

    @property
    def open(self) -> bool:
        """Whether its connection is there."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send to its party."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Say that no more will come."""
        if self.open:
            assert self._transport is not None
            self._transport.write_eof()

    def close(self) -> None:
        """Send the rest and close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


class _Route:
    """One listening port and the port behind it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.cut = False
        self.ends: dict[_End, None] = {}
        self.server: asyncio.Server | None = None
        self._waiting: dict[_End, None] = {}
        self._dials: dict[asyncio.Task[None], None] = {}

    def admit(self, caller: _End) -> None:
        """Connect a caller with its party, now or once the cut is healed."""
        if self.cut:
            self._waiting[caller] = None
            return
        dial = asyncio.get_running_loop().create_task(self._dial(caller))
        self._dials[dial] = None
        dial.add_done_callback(self._dials.pop)

    async def _dial(self, caller: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _End(self, caller), LOOPBACK, self.target)
        except OSError:
            caller.abort()
        if not caller.open and caller.other is not None:
            caller.other.close()

    def set_cut(self, *, cut: bool) -> None:
        """Hold everything up, or let it go."""
        self.cut = cut
        for end in list(self.ends):
            end.settle()
        if not cut:
            waiting, self._waiting = self._waiting, {}
            for caller in waiting:
                if caller.open:
                    self.admit(caller)

    def drop(self) -> None:
        """Break off what is connected now."""
        for end in list(self.ends):
            end.abort()

    def close(self) -> None:
        """Listen no more."""
        if self.server is not None:
            self.server.close()
        for dial in list(self._dials):
            dial.cancel()
        self.drop()


class Switchboard:
    """All relays of a process; to be used on one loop."""

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}

    async def open(self, targets: dict[str, int]) -> dict[str, int]:
        """Open a relay for each name and target port; the ports to call in their place."""
        return {name: await self._open(name, target) for name, target in targets.items()}

    async def _open(self, name: str, target: int) -> int:
        assert name not in self._routes, f"there is a route {name} already"
        route = _Route(target)
        loop = asyncio.get_running_loop()
        route.server = await loop.create_server(lambda: _End(route), LOOPBACK, 0)
        self._routes[name] = route
        port: int = route.server.sockets[0].getsockname()[1]
        return port

    def act(self, action: str, names: list[str]) -> None:
        """``cut``, ``heal``, ``drop`` or ``close`` these routes."""
        for name in names:
            match action:
                case "cut" | "heal":
                    self._routes[name].set_cut(cut=action == "cut")
                case "drop":
                    self._routes[name].drop()
                case "close":
                    self._routes.pop(name).close()
                case _:
                    raise ValueError(f"{action}: expected cut, heal, drop or close")
