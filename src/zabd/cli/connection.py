"""What every command that talks to an ensemble shares: where it is, and one session to it."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from zabd.cli.output import CommandError, ExitStatus
from zabd.model.errors import (
    BadArgumentsError,
    ClosingError,
    ConnectionLossError,
    OperationTimeoutError,
    RemoteProtocolError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ZabdError,
)
from zabd.model.paths import check_path

if TYPE_CHECKING:
    from zabd.client import Client

DEFAULT_SERVERS = "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183"
SERVER_VARIABLE = "ZABD_SERVER"
SASL_VARIABLE = "ZABD_SASL"  # other users see a command line, and not its environment
SESSION_TIMEOUT_S = 12.0

P = ParamSpec("P")
T = TypeVar("T")
_UNKNOWN_OUTCOME = (
    ClosingError,
    ConnectionLossError,
    OperationTimeoutError,
    RemoteProtocolError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the ensemble, as the command line and the environment say it."""

    server: str
    timeout_s: float
    session_timeout_s: float
    auth: tuple[tuple[str, bytes], ...]
    sasl: tuple[str, str] | None = None

    def client(self) -> "Client":
        """A client that is not started yet."""
        from zabd.client import connect

        return connect(
            self.server,
            timeout=self.session_timeout_s,
            connect_timeout=self.timeout_s,
            operation_timeout=self.timeout_s,
            auth=self.auth,
            sasl=self.sasl,
        )

    def run(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        """Open a session, do the work in it, close it."""

        async def in_session() -> T:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(in_session())


def connection_options(
    command: Callable[Concatenate[Connection, P], T],
) -> Callable[P, T]:
    """Give a command the options of a `Connection`, --server and so on."""

    @click.option(
        "--server",
        default=DEFAULT_SERVERS,
        envvar=SERVER_VARIABLE,
        metavar="HOSTS",
        callback=_checked_server,
        help="Members, as host:port,host:port, with a /chroot behind them if wanted.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        default=10.0,
        metavar="SECS",
        type=click.FloatRange(min=0, min_open=True),
        help="How long to wait for a member, and then for each answer.",
    )
    @click.option(
        "--session-timeout",
        "session_timeout_s",
        default=SESSION_TIMEOUT_S,
        metavar="SECS",
        type=click.FloatRange(min=0, min_open=True),
        help="The session timeout to ask for.",
    )
    @click.option(
        "--auth",
        multiple=True,
        metavar="SCHEME:CREDENTIALS",
        callback=_split_credentials,
        help="Say who you are, as in digest:user:password. May be repeated.",
    )
    @click.option(
        "--sasl",
        envvar=SASL_VARIABLE,
        metavar="USER:PASSWORD",
        callback=_split_user,
        help="Prove who you are by SASL (DIGEST-MD5), before anything else.",
    )
    @functools.wraps(command)
    def with_connection(
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        taken = {name: kwargs.pop(name) for name in Connection.__slots__}
        connection = Connection(**taken)  # type: ignore[arg-type]
        return command(connection, *args, **kwargs)

    return with_connection


def checked_path(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Callback of a path argument: refuses what no server would take, with the rule it breaks."""
    try:
        check_path(value)
    except BadArgumentsError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return value


def status_of_error(error: ZabdError) -> ExitStatus:
    """The exit status for a failure that a command did not expect."""
    if isinstance(error, OperationTimeoutError) and error.operation == "connect":
        return ExitStatus.NO_ENSEMBLE
    if isinstance(error, _UNKNOWN_OUTCOME):
        return ExitStatus.TRY_AGAIN
    return ExitStatus.REFUSED


def session_lost() -> CommandError:
    """The failure of a command that stands or falls with its session."""
    return CommandError("the session is lost, and with it what it held", ExitStatus.TRY_AGAIN)


def _checked_server(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from zabd.client.hosts import parse_connect_string

    try:
        parse_connect_string(value)
    except (ValueError, BadArgumentsError) as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return value


def _split_credentials(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, bytes], ...]:
    pairs = [value.partition(":") for value in values]
    for scheme, colon, _ in pairs:
        if not (scheme and colon):
            raise click.BadParameter("expected SCHEME:CREDENTIALS", ctx, parameter)
    return tuple((scheme, credentials.encode()) for scheme, _, credentials in pairs)


def _split_user(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, str] | None:
    if value is None:
        return None
    user, colon, password = value.partition(":")
    if not (user and colon):
        raise click.BadParameter("expected USER:PASSWORD", ctx, parameter)
    return user, password
