"""Who this process is: the one place where the client asks for host name and process id."""

import os
import socket
from typing import NamedTuple


class Identity(NamedTuple):
    """The host and process that records name as their owner; for people, never for decisions."""

    host: str
    pid: int


def own_identity() -> Identity:
    """Ask the operating system."""
    return Identity(socket.gethostname(), os.getpid())  # noqa: TID251 - the seam itself
