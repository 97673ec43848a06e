"""`zabctl four`: a four-letter word to each member, as monitoring programs send them."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from zabd.cli.connection import DEFAULT_SERVERS, SERVER_VARIABLE
from zabd.cli.output import ExitStatus, print_json, say
from zabd.cli.words import ADDRESS_COUNT_MAX, ask
from zabd.model.errors import BadArgumentsError

if TYPE_CHECKING:
    from zabd.client.hosts import Host

_LETTERS = 4
_EXIT_HELP = """\b
Exit status:
  0   a member answered, with --all every one
  1   with --all: some did not
  69  none did
"""


@click.command(epilog=_EXIT_HELP)
@click.argument("word")
@click.option(
    "--server",
    default=DEFAULT_SERVERS,
    envvar=SERVER_VARIABLE,
    metavar="HOSTS",
    help="Members, as host:port,host:port.",
)
@click.option("--all", "every", is_flag=True, help="Fail unless every member answers.")
@click.option(
    "--timeout",
    default=2.0,
    metavar="SECS",
    type=click.FloatRange(min=0, min_open=True),
    help="How long to wait for each member.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, text by member.")
def four(word: str, server: str, timeout: float, *, every: bool, as_json: bool) -> None:
    """Send the four-letter WORD (ruok, srvr, mntr, ...) to each member and print the answers.

    Each answer has a header when there are several members. A word that a member's configuration
    does not allow is answered with a sentence, one that it does not know with nothing.
    """
    if len(word) != _LETTERS or not (word.isascii() and word.isprintable()):
        raise click.BadParameter("expected four ASCII letters", param_hint="WORD")
    hosts = _hosts(server)
    with ThreadPoolExecutor(max_workers=min(len(hosts), ADDRESS_COUNT_MAX)) as pool:
        answers = list(pool.map(lambda host: _answer(host, word, timeout), hosts))
    found = {str(host): text for host, text in zip(hosts, answers, strict=True) if text is not None}
    if as_json:
        print_json(found)
    else:
        _print(found, headers=len(hosts) > 1)
    if not found:
        raise SystemExit(ExitStatus.NO_ENSEMBLE)
    raise SystemExit(ExitStatus.REFUSED if every and len(found) < len(hosts) else ExitStatus.OK)


def _hosts(server: str) -> "tuple[Host, ...]":
    from zabd.client.hosts import parse_connect_string

    try:
        return tuple(dict.fromkeys(parse_connect_string(server).hosts))
    except (ValueError, BadArgumentsError) as error:
        raise click.BadParameter(str(error), param_hint="--server") from error


def _answer(host: "Host", word: str, timeout_s: float) -> str | None:
    try:
        text = ask(host.name, host.port, word, timeout_s=timeout_s)
    except TimeoutError:
        say(f"{host}: no answer in {timeout_s:g} s")
        return None
    except (OSError, UnicodeError) as error:
        say(f"{host}: {getattr(error, 'strerror', None) or error}")
        return None
    if not text:
        say(f"{host}: closed the connection; perhaps it does not know {word}")
        return None
    return text


def _print(answers: dict[str, str], *, headers: bool) -> None:
    for host, text in answers.items():
        if headers:
            click.echo(f"--- {host}")
        click.echo(text, nl=not text.endswith("\n"))
