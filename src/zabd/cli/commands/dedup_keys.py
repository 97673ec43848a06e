"""What `zabctl dedup` does for an operator: show a key, forget it, settle it, sweep the base."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from zabd.cli.output import CommandError, ExitStatus, print_json, print_table, say
from zabd.model.ids import format_session

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.recipes.dedup import Dedup, LockNode, Status

OUTCOMES = ("completed", "failed", "not-executed")
SWEPT_AT_ONCE = 1000


async def show(client: "Client", deduper: "Dedup", key: str, *, as_json: bool) -> int:
    """Draw the chain of those who contend for a key, and say what is recorded."""
    status = await deduper.status(key)
    now_ms = client.wall_ms()
    if as_json:
        print_json(_as_object(key, status, now_ms))
        return ExitStatus.OK
    click.echo(f"{key}: {status.state}")
    if status.contenders:
        print_table(_HEADER, _rows(status, now_ms))
    if status.started is not None:
        click.echo(_attempt(status))
    if status.record is not None:
        click.echo(_outcome(status))
    return ExitStatus.OK


async def forget(deduper: "Dedup", key: str) -> int:
    """Delete what is recorded for a key, so that it runs again."""
    if not await deduper.forget(key):
        raise CommandError(f"nothing is recorded for {key}", ExitStatus.REFUSED)
    return ExitStatus.OK


async def resolve(deduper: "Dedup", key: str, outcome: str, value: str | None) -> int:
    """Say what became of an attempt in doubt."""
    from zabd.client.recipes.dedup import Completed, Failed, NotExecuted, PermanentError

    verdicts: dict[str, Callable[[], Any]] = {
        "completed": lambda: Completed(_value(value, 0)),
        "failed": lambda: Failed(PermanentError("settled by hand", _value(value, 1))),
        "not-executed": lambda: NotExecuted,
    }
    if not await deduper.resolve(key, verdicts[outcome]()):
        raise CommandError(f"no attempt of {key} is in doubt", ExitStatus.REFUSED)
    return ExitStatus.OK


async def sweep(deduper: "Dedup", rate: float, *, as_json: bool) -> int:
    """Remove what servers without containers and TTLs leave behind, page by page."""
    keys = records = parents = 0
    after: str | None = ""
    while after is not None:
        swept = await deduper.sweep(limit=SWEPT_AT_ONCE, rate=rate, after=after)
        keys, records, parents = (
            keys + swept.keys,
            records + swept.records,
            parents + swept.parents,
        )
        after = swept.after
    if as_json:
        print_json({"keys": keys, "records": records, "parents": parents})
    else:
        say(f"{keys} keys looked at, {records} records and {parents} keys removed")
    return ExitStatus.OK


def checked_value(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of --value: refuses what is not JSON."""
    try:
        json.loads(value or "null")
    except ValueError as error:
        raise click.BadParameter(f"expected JSON: {error}", ctx, parameter) from error
    return value


def _value(value: str | None, status: int) -> object:
    """What is recorded: the value given, or that of a command without output."""
    return {"status": status, "stdout": ""} if value is None else json.loads(value)


# The chain.

_HEADER = ("", "CONTENDER", "SESSION", "AGE", "TOKEN", "WATCHES")


def _rows(status: "Status", now_ms: int) -> list[tuple[object, ...]]:
    return [
        (
            "waits" if before else "holds",
            node.name,
            format_session(node.session_id),
            f"{_age_ms(node, now_ms) / 1000:.1f} s",
            node.fencing_token,
            before.name if before else None,
        )
        for node, before in _chain(status)
    ]


def _chain(status: "Status") -> list[tuple["LockNode", "LockNode | None"]]:
    """Each contender with the one whom it watches; the holder watches nobody."""
    nodes = status.contenders
    return list(zip(nodes, (None, *nodes), strict=False))


def _age_ms(node: "LockNode", now_ms: int) -> int:
    """For people: the stamp is the ensemble's, the time now this host's."""
    return max(0, now_ms - node.created_ms)


def _attempt(status: "Status") -> str:
    started = status.started
    assert started is not None
    point = f", reached {started.recovery_point!r}" if started.recovery_point else ""
    where = f"{started.owner.get('host')}:{started.owner.get('pid')}"
    return f"attempt {started.attempt} by {where}, session {started.owner.get('session')}{point}"


def _outcome(status: "Status") -> str:
    record = status.record
    assert record is not None
    told = json.dumps(record.error or record.value, ensure_ascii=False)
    shown = "(too large to be kept)" if record.omitted else told
    return f"attempt {record.attempt} with token {record.fencing_token}: {shown}"


def _as_object(key: str, status: "Status", now_ms: int) -> dict[str, object]:
    return {
        "key": key,
        "state": str(status.state),
        "holder": status.holder.name if status.holder else None,
        "contenders": [
            {
                "name": node.name,
                "sequence": node.sequence,
                "session": format_session(node.session_id),
                "age_ms": _age_ms(node, now_ms),
                "fencing_token": node.fencing_token,
                "payload_hash": node.payload_hash,
                "watches": before.name if before else None,
            }
            for node, before in _chain(status)
        ],
        "started": _record(status.started),
        "result": _record(status.record),
    }


def _record(record: Any) -> object:  # noqa: ANN401 - either record, or none
    return None if record is None else json.loads(record.encode())
