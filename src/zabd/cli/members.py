"""An ensemble of real processes on the loopback address: started, killed, stopped, restarted.

The demo, the benchmarks and the tests on real processes stand on this. Every member is a `zabd` of
its own, through the installed command, with a directory and a log file of its own below one folder.

    M1  No member outlives the process that started it, however that process ends (`Reaper`).
        Whoever brings a `Launcher` of his own keeps this promise with it.
    M2  A member keeps its ports from one start to the next. They lie below the range from which the
        system takes the ports of outgoing connections, so that nobody takes them while it is down.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from zabd.cli.ports import LOOPBACK, PortLeases
from zabd.cli.reaper import Reaper
from zabd.cli.words import MemberStatus, mode_of, status_of
from zabd.model.errors import ZabdError

PORTS_PER_MEMBER = 3
POLL_INTERVAL_S = 0.01
LOG_TAIL_BYTES = 4_000
DEFAULT_SETTINGS: Mapping[str, str] = {"tickTime": "2000", "initLimit": "10", "syncLimit": "5"}

Route = Callable[[int, int, int], int]
"""From the member that calls, the member it calls and that one's port: the port to call."""


class MemberError(ZabdError):
    """A member process did not do what it was started for; the message ends with its log."""


class Process(Protocol):
    """What runs one member, as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def poll(self) -> int | None:
        """Its exit status, None while it lives."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Do to it what this signal does to a process; nothing if it has ended."""
        ...


class Launcher(Protocol):
    """Starts the daemon for a configuration."""

    def launch(self, config: Path, member_id: int, log: Path) -> Process:
        """Start a member that appends what it prints to `log`; does not wait until it serves."""
        ...

    def close(self) -> None:
        """End what was launched and has not ended."""
        ...


class CommandLauncher:
    """Runs a command for each member, and a reaper beside them."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """`command` takes ``--config FILE --id N``; by default it is the installed `zabd`."""
        self._command = tuple(command or daemon_command())
        self._reaper = Reaper()

    def launch(self, config: Path, member_id: int, log: Path) -> Process:
        """Start a process in a group of its own."""
        with log.open("ab") as output:
            process = _Reaped(
                (*self._command, "--config", str(config), "--id", str(member_id)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=clean_environment(),
            )
        process.reaper = self._reaper
        self._reaper.watch(process.pid)
        return process

    def close(self) -> None:
        """Kill what is left."""
        self._reaper.close()


class _Reaped(subprocess.Popen[bytes]):
    """A process that the reaper is told to forget once its number is free again."""

    reaper: Reaper

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        self.reaper.forget(self.pid)
        return status


class Member:
    """One `zabd` process and what it needs to be started again."""

    def __init__(self, member_id: int, client_port: int, folder: Path, launcher: Launcher) -> None:
        self.id = member_id
        self.client_port = client_port
        self.folder = folder
        self.config = folder / "zoo.cfg"
        self.data = folder / "data"
        self.log = folder / "log.txt"
        self._launcher = launcher
        self._process: Process | None = None

    @property
    def address(self) -> str:
        """Where clients find it, as they write it in a connect string."""
        return f"{LOOPBACK}:{self.client_port}"

    @property
    def pid(self) -> int:
        """The process id, valid while the member runs."""
        assert self._process is not None, "the member was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives; a stopped process does."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does not wait until it serves."""
        assert not self.running, f"member {self.id} runs already"
        self._process = self._launcher.launch(self.config, self.id, self.log)

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to the process if it lives."""
        if self._process is not None and self.running:
            self._process.send_signal(signal_number)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """SIGSTOP: the process stays, and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `stop`."""
        self.send(signal.SIGCONT)

    def terminate(self, *, timeout_s: float = 10.0) -> int:
        """SIGTERM; the exit status. Kills the process and raises if it has not ended in time."""
        self.send(signal.SIGTERM)
        self.resume()
        try:
            return self.wait(timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise MemberError(
                f"member {self.id} was still there {timeout_s:g} s after SIGTERM\n{self.log_tail()}"
            ) from None

    def wait(self, *, timeout_s: float | None = None) -> int:
        """Wait for the end of the process; its exit status, negative for a signal."""
        assert self._process is not None, "the member was never started"
        return self._process.wait(timeout_s)

    def status(self, *, timeout_s: float = 0.5) -> MemberStatus:
        """What the member says about itself just now."""
        return status_of(LOOPBACK, self.client_port, timeout_s=timeout_s)

    def mode(self, *, timeout_s: float = 0.5) -> str | None:
        """Its role, such as ``leader``; None while it does not serve or does not answer."""
        return mode_of(LOOPBACK, self.client_port, timeout_s=timeout_s)

    def log_tail(self, size_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of what it printed."""
        if not self.log.exists():
            return f"--- member {self.id} printed nothing"
        text = self.log.read_bytes()[-size_bytes:].decode("utf-8", "replace")
        return f"--- member {self.id}, end of {self.log}\n{text}"


class Ensemble:
    """Several members that know each other. A context manager: leaving it ends all of them."""

    def __init__(
        self,
        folder: Path,
        *,
        voters: int = 3,
        observers: int = 0,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        started: int | None = None,
        launcher: Launcher | None = None,
        ports: Sequence[int] | None = None,
        route: Route | None = None,
    ) -> None:
        """Lay out an ensemble below `folder`; `started` limits how many members `start` starts.

        `ports` are three for each member: for clients, the quorum and elections. `route` says
        where a member finds another one, for who puts something between them.
        """
        self.folder = folder
        self._launcher = launcher or CommandLauncher(command)
        self._route = route or (lambda _caller, _called, port: port)
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._started = started
        self._closed = False
        count = voters + observers
        self._leases = PortLeases()
        ports = ports or self._leases.take(count * PORTS_PER_MEMBER)
        self._triples = [tuple(ports[at : at + 3]) for at in range(0, len(ports), 3)]
        self._voters = voters
        self.members = [
            Member(member_id, client_port, folder / str(member_id), self._launcher)
            for member_id, (client_port, _, _) in enumerate(self._triples, 1)
        ]
        for member in self.members:
            self._configure(member)

    @property
    def hosts(self) -> str:
        """The connect string with every member in it."""
        return ",".join(member.address for member in self.members)

    def member(self, member_id: int) -> Member:
        """The member with this id."""
        return self.members[member_id - 1]

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start the members and wait until all of them serve."""
        members = self.members[: self._started]
        for member in members:
            member.start()
        self.wait_serving(members, timeout_s=timeout_s)

    def wait_serving(
        self, members: Sequence[Member] | None = None, *, timeout_s: float = 30.0
    ) -> None:
        """Wait until each of these members (default: all that run) says that it serves."""
        chosen = self.running() if members is None else members
        for member in chosen:
            self.wait_for(
                lambda member=member: _serves(member),  # type: ignore[misc]
                f"member {member.id} to serve",
                timeout_s=timeout_s,
            )

    def wait_for(
        self, condition: Callable[[], object], what: str, *, timeout_s: float = 30.0
    ) -> None:
        """Poll a condition; raises `MemberError` with every log if it does not come true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._closed:  # by another thread
                raise MemberError(f"the ensemble was closed while waiting for {what}")
            if time.monotonic() > deadline:
                raise MemberError(f"waited {timeout_s:g} s in vain for {what}\n{self.logs()}")
            time.sleep(POLL_INTERVAL_S)

    def wait_leader(self, *, other_than: Member | None = None, timeout_s: float = 30.0) -> Member:
        """Wait until a running member leads; that member."""
        found: list[Member] = []

        def leads() -> bool:
            found[:] = [m for m in self.running() if m is not other_than and _leads(m)]
            return bool(found)

        self.wait_for(leads, "a leader", timeout_s=timeout_s)
        return found[0]

    def leader(self) -> Member | None:
        """The member that says it leads, if one does."""
        return next((member for member in self.running() if _leads(member)), None)

    def running(self) -> list[Member]:
        """The members whose processes live."""
        return [member for member in self.members if member.running]

    def logs(self) -> str:
        """The end of each member's log, for the message of a failure."""
        return "\n".join(member.log_tail() for member in self.members)

    def close(self) -> None:
        """End every member at once; their folders stay."""
        self._closed = True
        for member in self.running():
            member.kill()
        self._launcher.close()
        self._leases.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _peers(self, caller: int) -> Iterator[str]:
        """The lines that tell one member of all of them."""
        for member_id, (client, *ports) in enumerate(self._triples, 1):
            quorum, election = (
                port if member_id == caller else self._route(caller, member_id, port)
                for port in ports
            )
            role = ":observer" if member_id > self._voters else ""
            yield f"server.{member_id}={LOOPBACK}:{quorum}:{election}{role};{LOOPBACK}:{client}"

    def _configure(self, member: Member) -> None:
        member.data.mkdir(parents=True, exist_ok=True)
        settings = {**self._settings, "dataDir": str(member.data), "maxClientCnxns": "0"}
        lines = [f"{key}={value}" for key, value in settings.items()]
        if len(self.members) > 1:
            lines += self._peers(member.id)
        else:
            lines += [f"clientPort={member.client_port}", f"clientPortAddress={LOOPBACK}"]
        member.config.write_text("\n".join(lines) + "\n", encoding="utf-8")


def daemon_command() -> list[str]:
    """The installed `zabd`: the one beside this Python, else the one on the path."""
    beside = Path(sys.executable).with_name("zabd")
    found = str(beside) if beside.exists() else shutil.which("zabd")
    if found is None:
        raise MemberError("there is no `zabd` beside this Python nor on the path: is it installed?")
    return [found]


def clean_environment() -> dict[str, str]:
    """This environment without ``ZABD_*``: what the user set is not meant for these members."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ZABD_")}


def _serves(member: Member) -> bool:
    if not member.running:
        raise MemberError(
            f"member {member.id} ended with status {member.wait()}\n{member.log_tail()}"
        )
    return member.mode() is not None


def _leads(member: Member) -> bool:
    return member.mode() in {"leader", "standalone"}
