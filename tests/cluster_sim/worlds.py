"""A small simulated world for tests: one schedule, one network, processes, connections."""

import asyncio

from zabd.cluster_sim.network import Network
from zabd.cluster_sim.schedule import Schedule
from zabd.cluster_sim.trace import Trace
from zabd.cluster_sim.virtual_loop import VirtualLoop


class World:
    """One schedule, one network, as many processes as a test asks for."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = Schedule(seed)
        self.trace = Trace(lambda: self.schedule.now_us)
        self.network = Network(self.schedule, self.trace)

    def process(self, name: str = "", *, drift_ppm: int = 0) -> VirtualLoop:
        host = self.network.add_host(name or f"m{len(self.network.hosts) + 1}")
        stack = self.network.open_stack(host)
        return VirtualLoop(self.schedule, stack, self.trace, drift_ppm=drift_ppm)


class Recorder(asyncio.Protocol):
    """Keeps everything it hears, as words."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.data = bytearray()
        self.transport: asyncio.Transport
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.heard.append("data")

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.heard.append("lost")

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")


def connect(world: World, server: VirtualLoop, client: VirtualLoop) -> tuple[Recorder, Recorder]:
    """A connection from `client` to `server`; the server's and the client's end."""
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    async def listen() -> None:
        await server.create_server(factory, server.stack.host.name, 2181)

    async def dial() -> Recorder:
        _, protocol = await client.create_connection(Recorder, server.stack.host.name, 2181)
        assert isinstance(protocol, Recorder)
        return protocol

    server.run_until_complete(listen())
    dialler = client.run_until_complete(dial())
    world.schedule.run_until(world.schedule.now_us + 100_000)
    return accepted[0], dialler


def later(world: World, ms: int = 1_000) -> None:
    """Let `ms` milliseconds pass."""
    world.schedule.run_until(world.schedule.now_us + ms * 1_000)
