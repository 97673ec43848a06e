"""`zabctl dedup`: a command that runs once per key, whichever hosts try."""

import asyncio
import base64
import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from zabd.cli.command_group import GRACE_S, shell_status, start, supervised
from zabd.cli.commands import dedup_keys
from zabd.cli.connection import Connection, checked_path, connection_options
from zabd.cli.files import read_file
from zabd.cli.output import CommandError, ExitStatus, say

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.recipes.dedup import Dedup, DedupError
    from zabd.client.recipes.dedup.hold import Held

# The whole record is JSON of at most 64 KiB, in which a byte of output may take six.
RECORD_BYTES_MAX = 64 * 1024 - 1024
SHA256_HEX = re.compile(r"[0-9a-f]{64}")


EXIT_HELP = """\b
Exit status: that of COMMAND, run or recorded (128 + n after signal n), or
  65   the key was used with another payload
  69   no member serves or could be reached
  75   somebody else works on the key, or the session was lost: try again
  76   an earlier attempt may have run, and --on-in-doubt=fail
  126  COMMAND cannot be run
  127  COMMAND is not found
"""


def checked_key(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of the key: refuses one that has no znode name."""
    from zabd.client.recipes.dedup.keys import KEY_BYTES_MAX

    if value is None:
        return None
    if not 0 < len(value.encode()) <= KEY_BYTES_MAX:
        raise click.BadParameter(f"a key has 1 to {KEY_BYTES_MAX} bytes", ctx, parameter)
    return value


@click.command(context_settings={"ignore_unknown_options": True}, epilog=EXIT_HELP)
@click.argument("key", required=False, callback=checked_key)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--payload", metavar="FILE", help="What is asked for; compared by digest. - is stdin."
)
@click.option("--payload-hash", metavar="HEX", help="The SHA-256 of the payload, in its place.")
@click.option("--wait", default=30.0, metavar="SECS", help="Wait for whoever works on the key now.")
@click.option("--no-wait", is_flag=True, help="Do not wait for whoever works on the key now.")
@click.option("--ttl", default=86_400.0, metavar="SECS", help="How long the outcome is kept.")
@click.option(
    "--on-in-doubt",
    default="rerun",
    type=click.Choice(["rerun", "fail"]),
    help="When an earlier attempt may have run: run again, or fail.",
)
@click.option(
    "--token-epoch",
    type=click.IntRange(min=0),
    metavar="N",
    help="Raise it when the ensemble was made anew or restored: tokens start from lower ones then.",
)
@click.option("--store-failure", is_flag=True, help="Record a failure too: do not run again.")
@click.option(
    "--base", default="/dedup", metavar="PATH", callback=checked_path, help="Znode above."
)
@click.option("--status", is_flag=True, help="Show who contends for KEY, and what is recorded.")
@click.option("--forget", is_flag=True, help="Delete what is recorded for KEY: it runs again.")
@click.option(
    "--resolve",
    type=click.Choice(dedup_keys.OUTCOMES),
    help="Say what became of an attempt of KEY that is in doubt.",
)
@click.option(
    "--value",
    metavar="JSON",
    callback=dedup_keys.checked_value,
    help="With --resolve: the value to record, if not that of a silent command.",
)
@click.option("--sweep", is_flag=True, help="Remove what is over from servers without TTL znodes.")
@click.option("--rate", default=100.0, metavar="N", help="With --sweep: keys in a second.")
@click.option("--json", "as_json", is_flag=True, help="With --status, --sweep: print JSON.")
@click.option("--grace", default=GRACE_S, metavar="SECS", help="From SIGTERM to SIGKILL.")
@connection_options
def dedup(
    connection: Connection,
    key: str | None,
    command: tuple[str, ...],
    payload: str | None,
    payload_hash: str | None,
    wait: float,
    ttl: float,
    on_in_doubt: str,
    token_epoch: int | None,
    base: str,
    resolve: str | None,
    value: str | None,
    rate: float,
    grace: float,
    *,
    no_wait: bool,
    store_failure: bool,
    status: bool,
    forget: bool,
    sweep: bool,
    as_json: bool,
) -> None:
    """Run COMMAND once per KEY across all hosts; write -- in front of it.

    The first caller runs COMMAND and records its exit status and standard output. A duplicate does
    not run it: it prints what was recorded, exits with the recorded status and says "replayed" on
    standard error. A failure is not recorded and leaves the key free, unless --store-failure is
    given. Death by a signal leaves the attempt in doubt: it may have done its work.

    COMMAND finds in its environment DEDUP_KEY, DEDUP_ATTEMPT and DEDUP_FENCING_TOKEN, a number that
    is greater for each later attempt: hand it to whatever is written to, and let that refuse lower
    ones. After an attempt in doubt DEDUP_PREVIOUS_TOKEN is that attempt's number. With
    --token-epoch there is DEDUP_TOKEN_EPOCH too: compare the two as a pair.

    When the connection is lost COMMAND and its children are stopped (SIGSTOP); they go on when the
    session is there again. When it is over they are ended (SIGTERM, later SIGKILL) and nothing is
    recorded, as when this program is killed. If it is frozen itself, COMMAND is not: then only the
    token protects what it writes to.

    For an operator, without a COMMAND: --status draws the chain of those who contend for KEY, each
    of whom watches the one before; --forget, --resolve and --sweep (without KEY) clear up.
    """
    chosen = [status, forget, resolve is not None, sweep]
    _require_one_wish(key, command, chosen, sweeps=sweep)
    asked = _payload(payload, payload_hash)

    def deduper_of(client: "Client") -> "Dedup":
        from zabd.client.recipes.dedup import Dedup

        return Dedup(
            client,
            base=base,
            result_ttl=ttl,
            on_conflict="fail" if no_wait else "wait",
            on_in_doubt="fail" if on_in_doubt == "fail" else "rerun",
            acquire_timeout=wait,
            token_epoch=token_epoch,
        )

    async def work(client: "Client") -> int:
        deduper = deduper_of(client)
        if sweep:
            return await dedup_keys.sweep(deduper, rate, as_json=as_json)
        assert key is not None, "required above"
        if status:
            return await dedup_keys.show(client, deduper, key, as_json=as_json)
        if forget:
            return await dedup_keys.forget(deduper, key)
        if resolve is not None:
            return await dedup_keys.resolve(deduper, key, resolve, value)
        async with deduper.hold(key, payload=asked) as attempt:
            if attempt.replay is not None:
                return _replay(key, attempt.replay.value)
            environment = _environment(attempt, token_epoch)
            return await _execute(
                client, attempt, command, environment, grace, store_failure=store_failure
            )

    from zabd.client.recipes.dedup import DedupError, ReplayedFailureError

    try:
        ended = connection.run(work)
    except ReplayedFailureError as error:
        ended = _replay(error.key, _data_of(error.failure))
    except DedupError as error:
        raise CommandError(str(error), _status_of(error)) from error
    raise SystemExit(ended)


def _require_one_wish(
    key: str | None, command: tuple[str, ...], chosen: list[bool], *, sweeps: bool
) -> None:
    if sum(chosen) + bool(command) != 1:
        raise click.UsageError(
            "expected one of: a COMMAND behind --, --status, --forget, --resolve, --sweep"
        )
    if (key is None) != sweeps:
        raise click.UsageError("--sweep takes no KEY" if sweeps else "Missing argument 'KEY'.")


async def _execute(
    client: "Client",
    attempt: "Held",
    command: tuple[str, ...],
    environment: dict[str, str],
    grace_s: float,
    *,
    store_failure: bool,
) -> int:
    try:
        group = await start(command, environment, capture=True, grace_s=grace_s)
    except CommandError:
        await attempt.release()
        raise
    async with supervised(group, client, attempt.gate):
        output, status = await asyncio.gather(group.copy_output(RECORD_BYTES_MAX + 1), group.wait())
    await attempt.gate()
    await _settle(attempt, status, output, store_failure=store_failure)
    return shell_status(status)


async def _settle(attempt: "Held", status: int, output: bytes, *, store_failure: bool) -> None:
    from zabd.client.recipes.dedup import PermanentError

    if status < 0:
        say(f"killed by signal {-status}: whether {attempt.key} was done is in doubt")
        await attempt.leave_in_doubt()
    elif status == 0:
        await attempt.complete(recorded(status, output))
    elif store_failure:
        await attempt.fail(PermanentError(f"exit status {status}", recorded(status, output)))
    else:
        await attempt.release()


def recorded(status: int, output: bytes) -> dict[str, object]:
    """What is kept of a run; output that the record cannot hold is left out, and that is noted."""
    value: dict[str, object] = {"status": status}
    try:
        value["stdout"] = output.decode("utf-8")
    except UnicodeDecodeError:
        value["stdout_base64"] = base64.b64encode(output).decode("ascii")
    if len(json.dumps(value, ensure_ascii=False).encode()) > RECORD_BYTES_MAX:
        return {"status": status, "stdout_omitted": True}
    return value


def output_of(value: Mapping[str, object]) -> bytes | None:
    """The recorded standard output; None when it was too long to be kept."""
    if value.get("stdout_omitted"):
        return None
    if (text := value.get("stdout")) is not None:
        return str(text).encode()
    return base64.b64decode(str(value.get("stdout_base64", "")))


def _replay(key: str, value: object) -> int:
    if not isinstance(value, Mapping) or not isinstance(status := value.get("status"), int):
        raise CommandError(
            f"the outcome of {key} was recorded by something else than this command",
            ExitStatus.REFUSED,
        )
    output = output_of(value)
    if output is None:
        say("replayed, but its output was too long to be recorded")
    else:
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
        say("replayed")
    return shell_status(status)


def _data_of(failure: object) -> object:
    return failure.get("data") if isinstance(failure, Mapping) else None


def _environment(attempt: "Held", token_epoch: int | None) -> dict[str, str]:
    environment = {
        "DEDUP_KEY": attempt.key,
        "DEDUP_ATTEMPT": str(attempt.attempt),
        "DEDUP_FENCING_TOKEN": str(attempt.fencing_token),
    }
    if token_epoch is not None:
        environment["DEDUP_TOKEN_EPOCH"] = str(token_epoch)
    if attempt.previous is not None and attempt.previous.fencing_token is not None:
        environment["DEDUP_PREVIOUS_TOKEN"] = str(attempt.previous.fencing_token)
    return environment


def _payload(file: str | None, digest: str | None) -> object:
    from zabd.client.recipes.dedup.fingerprint import Fingerprint

    if file is not None and digest is not None:
        raise click.UsageError("--payload and --payload-hash exclude each other")
    if digest is not None:
        if not SHA256_HEX.fullmatch(digest.lower()):
            raise click.BadParameter("expected 64 hexadecimal digits", param_hint="--payload-hash")
        return Fingerprint(digest.lower())
    return None if file is None else read_file(file, "--payload")


def _status_of(error: "DedupError") -> ExitStatus:
    from zabd.client.recipes import dedup as errors

    if isinstance(error, errors.PayloadMismatchError):
        return ExitStatus.MISMATCH
    if isinstance(error, errors.InDoubtError):
        return ExitStatus.IN_DOUBT
    if error.retry or isinstance(error, errors.FencedError):
        return ExitStatus.TRY_AGAIN
    return ExitStatus.REFUSED
