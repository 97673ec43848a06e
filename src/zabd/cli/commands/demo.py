"""`zabctl demo`: the main job, with real processes and real faults, and a verdict."""

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path

import click

from zabd.cli.demo.display import Display
from zabd.cli.demo.judge import judge
from zabd.cli.demo.performance import DemoError, Performance
from zabd.cli.output import CommandError, ExitStatus, print_json, say
from zabd.model.errors import ZabdError

EXIT_HELP = """\b
Exit status:
  0   every claim of the verdict holds
  1   one does not, or the demo could not go on
"""


@click.command(epilog=EXIT_HELP)
@click.option("--keys", default=200, type=click.IntRange(min=20), help="Different requests.")
@click.option("--copies", default=5, type=click.IntRange(min=2), help="Deliveries of each request.")
@click.option("--workers", default=8, type=click.IntRange(min=2), help="Worker processes.")
@click.option("--seed", default=1, help="For the order of deliveries and how long each takes.")
@click.option("--deadline", default=120.0, metavar="SECS", help="Give up after so long.")
@click.option("--keep", is_flag=True, help="Leave data and logs behind; a failure always does.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, nothing else.")
def demo(
    keys: int, copies: int, workers: int, seed: int, deadline: float, *, keep: bool, as_json: bool
) -> None:
    """Kill a leader under load, freeze a lock holder, and judge what the clients saw.

    Three members run as processes on the loopback address. Every request is delivered several times
    to concurrent workers, which execute it once through the dedup recipe; its effect goes to a
    ledger that fences by token. In the middle the leader is killed, later a holder is stopped until
    its session has expired.
    """
    display = Display(quiet=as_json)
    folder = Path(tempfile.mkdtemp(prefix="zabd-demo-"))
    kept = keep
    try:
        performance = Performance(
            folder, display, keys=keys, copies=copies, workers=workers, seed=seed
        )
        asyncio.run(_play(performance, deadline))
        verdict = judge(performance)
        kept = keep or not verdict.passed
    except (ZabdError, ExceptionGroup) as error:
        kept = True
        raise CommandError(
            f"the demo could not go on: {_sentences(error)}\ndata and logs are in {folder}",
            ExitStatus.REFUSED,
        ) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(ExitStatus.INTERRUPTED) from None
    finally:
        display.close()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(verdict.as_document(seconds=round(display.elapsed_s, 1)))
    else:
        verdict.show()
        click.echo(f"{'PASSED' if verdict.passed else 'FAILED'} in {display.elapsed_s:.1f} s")
    if kept:
        say(f"data and logs are in {folder}")
    raise SystemExit(ExitStatus.OK if verdict.passed else ExitStatus.REFUSED)


async def _play(performance: Performance, deadline_s: float) -> None:
    main = asyncio.current_task()
    assert main is not None, "a coroutine that runs has a task"
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        async with asyncio.timeout(deadline_s):
            await performance.play()
    except TimeoutError:
        raise DemoError(f"it was not over after {deadline_s:g} s") from None


def _sentences(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_sentences(each) for each in error.exceptions)
    if isinstance(error, ZabdError):
        return str(error)
    raise error
