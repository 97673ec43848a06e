"""A game is a seed and moves; its page has the buttons for the next one."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from tests.cluster_sim.browser import MISSING, browsing

from zabd.cli.commands.sim_play import Handler, read_game
from zabd.cluster_sim.play import Game, Move

pytestmark = pytest.mark.sim


def told(page: str, what: str) -> Any:  # noqa: ANN401 - JSON
    """What a page has of this."""
    found = re.search(rf'id="{what}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def drawn(page: str) -> list[tuple[int, str, str, str]]:
    """The events of a page: instant, lane, kind, label."""
    record = told(page, "record")
    lanes = [record["lanes"][lane] for lane in record["lane"]]
    return list(zip(record["at"], lanes, record["kind"], record["label"], strict=True))


def test_a_move_happens_when_it_was_made() -> None:
    """And what came before it is as it was without it: a fork."""
    calm = drawn(Game(until_ms=600).page())
    moved = drawn(Game(until_ms=600, moves=(Move(400_000, "kill", 2),)).page())
    killed = next(n for n, event in enumerate(moved) if event[1:] == ("m2", "life", "killed"))
    assert 400_000 <= moved[killed][0] < 401_000
    assert [e for e in moved if e[0] < 400_000] == [e for e in calm if e[0] < 400_000]


@pytest.mark.parametrize("verb", ["power_off", "pause", "cut_off"])
def test_every_kind_of_harm_is_undone(verb: str) -> None:
    """Each has a move that takes it back, and the ensemble goes on."""
    back = {"power_off": "start", "pause": "resume", "cut_off": "heal"}[verb]
    game = Game(until_ms=900, moves=(Move(300_000, verb, 1), Move(500_000, back, 1)))
    page = game.page()
    assert told(page, "record")["failure"] is None
    assert any(
        span[0] == 1 and span[2] - span[1] >= 199_000 for span in told(page, "record")["spans"]
    )
    assert any(kind == "commit" and at > 500_000 for at, _, kind, _ in drawn(page))


def test_a_game_is_exported_as_the_program_that_it_is(tmp_path: Path) -> None:
    """The program draws the same events."""
    moves = (Move(400_000, "cut_off", 1), Move(450_000, "kill", 2), Move(500_000, "heal", 1))
    game = Game(until_ms=600, moves=moves)
    program = game.as_python().replace('"run.html"', repr(str(tmp_path / "run.html")))
    exec(compile(program, "exported", "exec"), {})  # noqa: S102 - the claim is that it runs
    assert drawn((tmp_path / "run.html").read_text()) == drawn(game.page())


@pytest.mark.parametrize(
    "query",
    ["members=9", "until=0", "moves=1:dance:1", "moves=1:kill:4", "moves=x", "seed=x"],
)
def test_what_is_no_game_is_refused(query: str) -> None:
    """With a ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        read_game(query)


@pytest.fixture
def address() -> Iterator[str]:
    """Where `zabctl sim play` would serve."""
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def status(url: str, **headers: str) -> int:
    """What the server answers."""
    try:
        with build_opener(ProxyHandler({})).open(Request(url, headers=headers)) as answer:  # noqa: S310
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def test_only_games_are_served_and_only_to_loopback(address: str) -> None:
    """Not to a page of another site that was given a name for this machine."""
    assert status(f"{address}?until=100") == 200
    assert status(f"{address}?members=9") == 400
    assert status(f"{address}etc/passwd") == 404
    assert status(f"{address}?until=100", Host="evil.example:80") == 403


@pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed: NOTHING WAS PLAYED")
def test_a_member_is_killed_by_clicking(address: str, tmp_path: Path) -> None:
    """The next page has it down from the chosen event on; taking back undoes it."""
    with browsing(tmp_path / "profile") as browser:
        browser.size(1440, 860)
        browser.open(f"{address}?until=500")
        browser.run("document.getElementById('play-member').value = '2'")
        browser.run("document.querySelector('[data-verb=kill]').click()")
        browser.wait("return location.search.includes('kill') && !!window.zabdPicture")
        states = "return zabdPicture.stateAt(2, zabdPicture.record.at.length - 1).role"
        assert browser.run(states) == "down"
        assert "scenario.members[2].kill()" in browser.run(
            "return document.querySelector('#play-python pre').textContent"
        )
        browser.run("document.querySelector('#play-moves button').click()")
        browser.wait("return !location.search.includes('kill') && !!window.zabdPicture")
        assert browser.run(states) != "down"
