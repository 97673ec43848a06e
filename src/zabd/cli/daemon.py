"""`zabd`: one member of an ensemble, in the foreground, until it is told to stop.

Exit codes: 0 stopped as asked, 2 the configuration cannot be served, 3 the data directory cannot be
used, 4 an address cannot be listened on, 5 the disk failed while serving, 6 the member gave up for
another reason that it named, 70 a bug in zabd.
"""

import asyncio
import gc
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from zabd.model.errors import ConfigError, StorageError
from zabd.server.app import CannotListenError, Server
from zabd.server.clock import SystemClock
from zabd.server.config import ServerConfig
from zabd.server.driver import MemberStoppedError
from zabd.server.identity import Identity
from zabd.server.keys import KEYS, Key
from zabd.server.logging import EventLog
from zabd.server.resolution import Resolved, Sources, resolve
from zabd.storage import OsDisk

EXIT_CONFIG: Final = 2
EXIT_DIRECTORY: Final = 3
EXIT_ADDRESS: Final = 4
EXIT_DISK: Final = 5
EXIT_STOPPED: Final = 6
EXIT_BUG: Final = 70

SWITCH_INTERVAL_S: Final = 0.0005
"""A disk thread that returns waits this long for the interpreter, instead of ten times as long."""

GC_THRESHOLDS: Final = (20_000, -1, 50_000)
"""A request makes no cycles, and a look at a whole tree would stop the member for a second. What
was made since is looked at after 20,000 new objects (4 ms), and counts as old from then on: with
-1 the generation in between is due each time as well. To look at all znodes twice took a create
0.9 us, and 20 ms at a time; with 50,000 and a million objects, a member whose tree grew stopped for
150 ms."""

DESCRIPTORS_MAX: Final = 65_536
"""Where the system sets no limit: more clients than one loop can serve."""

DESCRIPTORS_KEPT: Final = 128
"""Never given to clients: the disk and the peers must not go without (P16)."""


class DaemonCommand(click.Command):
    """Also takes `--server.N SPEC`, whose N no table of options can know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell `--server.N` as the `--set` that it is."""
        return super().parse_args(ctx, list(_without_members(args)))


def _without_members(args: Sequence[str]) -> list[str]:
    rewritten: list[str] = []
    waiting = iter(args)
    for arg in waiting:
        if not arg.startswith("--server."):
            rewritten.append(arg)
            continue
        key, equals, value = arg[2:].partition("=")
        rewritten += ["--set", f"{key}={value if equals else next(waiting, '')}"]
    return rewritten


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for every key of the configuration file, under the key's own name."""
    for key in reversed(KEYS):
        command = _key_option(key)(command)
    return command


def _key_option(key: Key) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        f"--{key.name}",
        f"key_{key.field}",
        metavar="VALUE",
        help=f"{key.help}: {key.allowed}. [{key.environment}]",
    )


@click.command(cls=DaemonCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "file", metavar="FILE", envvar="ZABD_CONFIG", help="A zoo.cfg to read.")
@click.option("--id", "member_id", type=int, envvar="ZABD_ID", help="Which member this is.")
@click.option("--ensemble", type=int, envvar="ZABD_ENSEMBLE", help="Size of the default ensemble.")
@click.option("--standalone", is_flag=True, envvar="ZABD_STANDALONE", help="An ensemble of one.")
@click.option(
    "--new-cluster",
    is_flag=True,
    envvar="ZABD_NEW_CLUSTER",
    help="There is no cluster yet: found one, though not all members are here.",
)
@click.option(
    "--give-up-damaged",
    is_flag=True,
    help="Lose for good what is damaged here: go on, and vote, with what is left. "
    "Acknowledged writes may be gone; only for when the other members cannot repair this one.",
)
@click.option(
    "--found-anew",
    metavar="CLUSTER",
    help="Found a new cluster from this member's directory, which belongs to CLUSTER now (its id, "
    "in hexadecimal). What this copy lacks is lost, and members with a directory of CLUSTER are "
    "shut out; only for when a majority has lost theirs, or when one member becomes several.",
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set any key.")
@click.option(
    "--log-format",
    type=click.Choice(["logfmt", "json"]),
    default="logfmt",
    envvar="ZABD_LOG_FORMAT",
    help="How log lines look.",
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    help="Show the page for Prometheus here: short for --metricsProvider.httpPort.",
)
@click.option("--no-uvloop", is_flag=True, envvar="ZABD_NO_UVLOOP", help="Use asyncio's own loop.")
@click.version_option(package_name="zabd")
@_key_options
def command(
    file: str | None,
    member_id: int | None,
    ensemble: int | None,
    settings: tuple[str, ...],
    log_format: str,
    metrics_port: str | None,
    *,
    standalone: bool,
    new_cluster: bool,
    give_up_damaged: bool,
    found_anew: str | None,
    no_uvloop: bool,
    **keys: str | None,
) -> None:
    """Run one member of an ensemble.

    With --id alone it is a member of the default ensemble of three on loopback; --standalone is an
    ensemble of one; --config reads a ZooKeeper configuration file. Every key of that file is also
    an option and an environment variable: the command line wins over the environment, which wins
    over the file.
    """
    try:
        resolved = _resolve(
            Sources(
                file_name=file,
                file_text=None if file is None else _read(Path(file)),
                environment=os.environ,
                options=_options(settings, keys, metrics_port),
                member_id=member_id,
                ensemble=ensemble,
                standalone=standalone,
                new_cluster=new_cluster,
                give_up_damaged=give_up_damaged,
                found_anew=found_anew,
            )
        )
    except ConfigError as error:
        _say(str(error))
        sys.exit(EXIT_CONFIG)
    sys.exit(run(resolved, as_json=log_format == "json", use_uvloop=not no_uvloop))


def _resolve(sources: Sources) -> Resolved:
    return resolve(sources, _read_myid)


def _options(
    settings: Sequence[str], keys: dict[str, str | None], metrics_port: str | None
) -> dict[str, str]:
    options: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"command line: --set {setting} is not KEY=VALUE")
        options[key] = value
    named = {key.name: keys[f"key_{key.field}"] for key in KEYS}
    if metrics_port is not None:
        options.setdefault("metricsProvider.httpPort", metrics_port)
    return options | {name: value for name, value in named.items() if value is not None}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error.reason}") from error


def _read_myid(directory: str) -> str | None:
    path = Path(directory) / "myid"
    return _read(path) if path.is_file() else None


def run(resolved: Resolved, *, as_json: bool, use_uvloop: bool) -> int:
    """Run the member to its end; the exit code says how it ended."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    log = EventLog(sys.stderr, SystemClock(), member=resolved.config.member_id, as_json=as_json)
    for notice in resolved.notices:
        log.trace("notice", {"level": "warning", "what": notice})
    with asyncio.Runner(loop_factory=_loop_factory(use_uvloop=use_uvloop)) as runner:
        return runner.run(_serve(_within_descriptors(resolved.config), log))


def _within_descriptors(config: ServerConfig) -> ServerConfig:
    """The configuration with as many connections as there can be descriptors for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, DESCRIPTORS_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = max(hard - DESCRIPTORS_KEPT, 1)
    return replace(config, connections_max=min(config.connections_max or room, room))


def _loop_factory(*, use_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if use_uvloop:
        try:
            import uvloop
        except ImportError:
            return None
        factory: Callable[[], Any] = uvloop.new_event_loop
        return factory
    return None


async def _serve(config: ServerConfig, log: EventLog) -> int:
    server = Server(
        config,
        disk_factory=lambda root, post: OsDisk(root, post, log.trace),
        clock=SystemClock(),
        identity=Identity.of_this_process(),
        rng=random.SystemRandom(),
        trace=log.trace,
        loaded=_spare_the_collector,
    )
    log.standing = lambda: server.standing
    return await _to_the_end(server, log)


def _spare_the_collector() -> None:
    """A tree that was just loaded is no garbage, and need not be looked through for any.

    Not even once: that is 10 ms of a start with an empty tree, and what a start leaves is next to
    nothing. The tree before, if there was one, has no cycles, so it is gone already.
    """
    gc.freeze()


async def _to_the_end(server: Server, log: EventLog) -> int:
    serving = False
    asyncio.get_running_loop().set_exception_handler(_exception_handler(server, log))
    asked_to_stop = _signalled()
    try:
        await server.start()
        serving = True
        ended = asyncio.ensure_future(server.serve())
        await asyncio.wait((ended, asked_to_stop), return_when=asyncio.FIRST_COMPLETED)
        await server.stop()
        await ended
    except CannotListenError as error:
        return _ended(log, error, EXIT_ADDRESS)
    except StorageError as error:
        return _ended(log, error, EXIT_DISK if serving else EXIT_DIRECTORY)
    except ConfigError as error:
        return _ended(log, error, EXIT_CONFIG)
    except MemberStoppedError as error:
        return _ended(log, error, EXIT_STOPPED)
    except Exception as error:  # noqa: BLE001  (a bug; this is the last place to say so)
        traceback.print_exception(error)
        return _ended(log, error, EXIT_BUG)
    return 0


def _exception_handler(
    server: Server, log: EventLog
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """What escapes from a callback is a bug, after which the member must not go on (S9)."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.trace(
            "loop_error",
            {"level": "error", "what": context.get("message"), "why": repr(error)},
        )
        # The system's own errors cost a connection: one that was reset, or no descriptor left.
        if isinstance(error, Exception) and not isinstance(error, OSError):
            server.fail(error)

    return handle


def _signalled() -> asyncio.Future[None]:
    """Done once SIGTERM or SIGINT came."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def ask() -> None:
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    return asked


def _ended(log: EventLog, error: Exception, code: int) -> int:
    log.trace("ended", {"level": "error", "code": code, "why": str(error) or repr(error)})
    return code


def _say(sentence: str) -> None:
    click.echo(f"zabd: {sentence}", err=True)


def main() -> None:
    """The console entry point."""
    if not __debug__:
        _say("python -O drops the checks that keep a bug from becoming lost data: run without it")
        sys.exit(EXIT_CONFIG)
    command()


if __name__ == "__main__":
    main()
