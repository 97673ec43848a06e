"""Who runs this process, behind a seam: host, process id and user, for the word `envi`."""

import getpass
import os
import platform
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process says about itself; plain values, so that a simulated one can be anybody."""

    host: str
    pid: int
    environment: tuple[tuple[str, str], ...] = field(default=())  # lines of the word `envi`
    descriptors: Callable[[], tuple[int, int]] = lambda: (0, 0)  # open, and how many may be

    @classmethod
    def of_this_process(cls) -> "Identity":
        """Ask the operating system."""
        return cls(
            host=socket.gethostname(),  # noqa: TID251  (this is the seam)
            pid=os.getpid(),  # noqa: TID251
            environment=_environment(),
            descriptors=_descriptors,
        )


def _descriptors() -> tuple[int, int]:
    try:
        count = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # not every system has it
        count = 0
    return count, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _environment() -> tuple[tuple[str, str], ...]:
    """The lines of `envi`; the java.* keys stay, since programs look for them."""
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        ("java.version", implementation),
        ("java.vendor", "zabd"),
        ("java.home", platform.python_implementation()),
        ("java.class.path", ""),
        ("java.library.path", ""),
        ("java.io.tmpdir", ""),
        ("java.compiler", "<NA>"),
        ("os.name", platform.system()),
        ("os.arch", platform.machine()),
        ("os.version", platform.release()),
        ("user.name", _user()),
        ("user.home", ""),
        ("user.dir", str(Path.cwd())),
        ("os.memory.free", _megabytes("SC_AVPHYS_PAGES")),
        ("os.memory.max", _megabytes("SC_PHYS_PAGES")),
        ("os.memory.total", _megabytes("SC_PHYS_PAGES")),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process may run as a user that has no name
        return str(os.getuid())


def _megabytes(pages: str) -> str:
    if pages not in os.sysconf_names:
        return "0MB"
    return f"{os.sysconf(pages) * os.sysconf('SC_PAGE_SIZE') // 2**20}MB"
