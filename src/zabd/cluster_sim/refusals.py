"""What a simulated process cannot do, each with a sentence that says so."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, TypeVarTuple

Ts = TypeVarTuple("Ts")


class Refusals(asyncio.AbstractEventLoop):
    """The part of an event loop that has no meaning in a simulated process."""

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> NoReturn:
        """Refused."""
        _refuse("descriptors")

    def add_writer(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> NoReturn:
        """Refused."""
        _refuse("descriptors")

    def remove_reader(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("descriptors")

    def remove_writer(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("descriptors")

    async def connect_read_pipe(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("pipes")

    async def connect_write_pipe(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("pipes")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("datagrams")

    async def sendfile(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("files")

    async def sock_accept(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_connect(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_recv(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_recv_into(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_recvfrom(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_recvfrom_into(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_sendall(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_sendfile(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def sock_sendto(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("raw sockets")

    async def start_tls(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("TLS")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("processes of its own")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse("processes of its own")


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"a simulated process has no {what}: connect by name and port")
