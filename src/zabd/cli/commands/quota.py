"""`zabctl quota`: how much there may be at and below a znode, and how much there is."""

from typing import TYPE_CHECKING

import click

from zabd.cli.connection import Connection, checked_path, connection_options
from zabd.cli.output import CommandError, ExitStatus, print_json
from zabd.model.quotas import NO_LIMITS, Limits

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.quotas import QuotaReport

_COLUMN = 16
_NOT_LIMITED = -1


@click.command()
@click.argument("path", callback=checked_path)
@click.option("--count", type=int, metavar="N", help="Warn beyond N znodes; -1 is no limit.")
@click.option("--bytes", "size_bytes", type=int, metavar="N", help="Warn beyond N bytes of data.")
@click.option("--hard-count", type=int, metavar="N", help="Refuse more than N znodes.")
@click.option("--hard-bytes", type=int, metavar="N", help="Refuse more than N bytes of data.")
@click.option("--delete", is_flag=True, help="End the quota.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connection_options
def quota(
    connection: Connection,
    path: str,
    count: int | None,
    size_bytes: int | None,
    hard_count: int | None,
    hard_bytes: int | None,
    *,
    delete: bool,
    as_json: bool,
) -> None:
    """Show the quota on the znode PATH, or set limits of it, or end it.

    The znode itself counts, and everything below it. Limits that are not named stay as they are.
    Hard ones are enforced where the members are configured with enforceQuota=true.
    """
    wanted = (count, size_bytes, hard_count, hard_bytes)
    if delete and any(limit is not None for limit in wanted):
        raise click.UsageError("a quota is either ended or given limits")

    async def work(client: "Client") -> "QuotaReport | None":
        from zabd.client.quotas import delete_quota, get_quota, set_quota

        found = await get_quota(client, path)
        if delete:
            return found if await delete_quota(client, path) else None
        if all(limit is None for limit in wanted):
            return found
        await set_quota(client, path, _merged(found.limits if found else NO_LIMITS, wanted))
        return await get_quota(client, path)

    found = connection.run(work)
    if found is None:
        raise CommandError(f"there is no quota on {path}", ExitStatus.REFUSED)
    if not delete:
        _print(path, found, as_json=as_json)


def _merged(limits: Limits, wanted: tuple[int | None, ...]) -> Limits:
    pairs = zip(limits, wanted, strict=True)
    return Limits(*(old if new is None else max(_NOT_LIMITED, new) for old, new in pairs))


def _print(path: str, found: "QuotaReport", *, as_json: bool) -> None:
    limits, usage = found
    if as_json:
        set_limits = {name: n for name, n in limits._asdict().items() if n != _NOT_LIMITED}
        print_json({"path": path, "usage": usage._asdict(), "limits": set_limits})
        return
    rows = (
        ("znodes", usage.znodes, limits.znodes, limits.znodes_hard),
        ("bytes", usage.size_bytes, limits.size_bytes, limits.size_bytes_hard),
    )
    click.echo("".join(f"{title:<{_COLUMN}}" for title in ("", "used", "warn", "refuse")).rstrip())
    for name, *numbers in rows:
        cells = ["-" if number == _NOT_LIMITED else str(number) for number in numbers]
        click.echo("".join(f"{cell:<{_COLUMN}}" for cell in (name, *cells)).rstrip())
