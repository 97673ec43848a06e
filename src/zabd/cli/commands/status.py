"""`zabctl status`: how each member is, from its four-letter words."""

import click

from zabd.cli.connection import DEFAULT_SERVERS, SERVER_VARIABLE
from zabd.cli.output import ExitStatus, print_json, print_table, say
from zabd.cli.words import MemberStatus, Reachability, statuses_of

HEADER = (
    "MEMBER",
    "STATE",
    "MODE",
    "ZXID",
    "EPOCH",
    "SESSIONS",
    "CONNECTIONS",
    "ZNODES",
    "LATENCY MS",
    "NOTE",
)


EXIT_HELP = """\b
Exit status:
  0   every member serves
  1   some do not
  69  none does
"""


@click.command(epilog=EXIT_HELP)
@click.option(
    "--server",
    default=DEFAULT_SERVERS,
    envvar=SERVER_VARIABLE,
    metavar="HOSTS",
    help="Members, as host:port,host:port.",
)
@click.option("--timeout", default=2.0, metavar="SECS", help="How long to wait for each member.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(server: str, timeout: float, *, as_json: bool) -> None:
    """Show mode, zxid, sessions, znodes and latency of each member, also when some are down.

    Latency is min/avg/max over the requests since the member started. The members asked are those
    in --server.
    """
    from zabd.client.hosts import parse_connect_string

    try:
        hosts = parse_connect_string(server).hosts
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from error
    members = statuses_of([(host.name, host.port) for host in hosts], timeout_s=timeout)
    if as_json:
        print_json([_document(member) for member in members])
    else:
        print_table(HEADER, map(_row, members))
    raise SystemExit(_verdict(members))


def _verdict(members: list[MemberStatus]) -> ExitStatus:
    serving = sum(member.reachability is Reachability.SERVING for member in members)
    if not serving:
        say("no member serves")
        return ExitStatus.NO_ENSEMBLE
    return ExitStatus.OK if serving == len(members) else ExitStatus.REFUSED


def _row(member: MemberStatus) -> tuple[object, ...]:
    zxid = None if member.zxid is None else f"{member.zxid:#x}"
    return (
        member.address,
        member.reachability.value,
        member.mode,
        zxid,
        member.epoch,
        member.number("global_sessions"),
        member.number("num_alive_connections"),
        member.number("znode_count"),
        _latency(member),
        member.detail,
    )


def _latency(member: MemberStatus) -> str | None:
    texts = [member.keys.get(f"zk_{kind}_latency") for kind in ("min", "avg", "max")]
    if None in texts:
        return None
    return "/".join(f"{float(text or 0):.3g}" for text in texts)


def _document(member: MemberStatus) -> dict[str, object]:
    return {
        "member": member.address,
        "state": member.reachability.value,
        "mode": member.mode,
        "zxid": member.zxid,
        "epoch": member.epoch,
        "sessions": member.number("global_sessions"),
        "connections": member.number("num_alive_connections"),
        "znodes": member.number("znode_count"),
        "detail": member.detail,
        "mntr": {key.removeprefix("zk_"): value for key, value in member.keys.items()},
    }
