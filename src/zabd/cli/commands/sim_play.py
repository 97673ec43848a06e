"""`zabctl sim play`: an ensemble in the browser, to be stepped, hurt and forked by clicking."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import click

if TYPE_CHECKING:
    from zabd.cluster_sim.play import Game

_LOOPBACK: Final = "127.0.0.1"
_OUR_NAMES: Final = (_LOOPBACK, "localhost")


@click.command()
@click.option("--port", default=0, help="Where to listen on loopback; any free port without it.")
@click.option("--seed", default=1, show_default=True, help="The chance of the game.")
@click.option("--members", default=3, show_default=True, help="How many members, 1 to 7.")
def play(*, port: int, seed: int, members: int) -> None:
    """Serve an ensemble to play with in the browser, until Ctrl-C."""
    with HTTPServer((_LOOPBACK, port), Handler) as server:
        address = f"http://{_LOOPBACK}:{server.server_port}/?seed={seed}&members={members}"
        click.echo(f"open {address} in a browser; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("bye", err=True)


class Handler(BaseHTTPRequestHandler):
    """Each address is a game; one is carried out at a time."""

    def do_GET(self) -> None:
        """Answer with the page of the game that the address names."""
        asked = urlsplit(self.path)
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in _OUR_NAMES:  # another site's page, which was given a name for loopback
            self._answer(403, "this is served to 127.0.0.1 only")
        elif asked.path != "/":
            self._answer(404, "there is only /")
        else:
            try:
                game = read_game(asked.query)
            except ValueError as error:
                self._answer(400, f"this is no game: {error}")
            else:
                self._answer(200, game.page(), "text/html")

    def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing of each look."""


def read_game(query: str) -> "Game":
    """The game that an address names. Raises ValueError."""
    from zabd.cluster_sim.play import Game, Move

    told = {name: values[-1] for name, values in parse_qs(query).items()}
    return Game(
        seed=int(told.get("seed", "1")),
        members=int(told.get("members", "3")),
        until_ms=int(told.get("until", "1000")),
        moves=tuple(Move.of(text) for text in told.get("moves", "").split(",") if text),
    )
