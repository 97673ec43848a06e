"""The asyncio host of a replica: it moves bytes and performs effects, and decides nothing."""

from zabd.server.app import Server
from zabd.server.config import ServerConfig

__all__ = ["Server", "ServerConfig"]
