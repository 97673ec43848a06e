"""The picture is one page that needs nothing else, and works in a browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_sim.browser import MISSING, Browser, browsing

from zabd.cluster_sim.picture import draw, page
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.record import Event, Record
from zabd.cluster_sim.replay import carry_out

pytestmark = [pytest.mark.sim]
in_a_browser = pytest.mark.skipif(
    MISSING is not None, reason=f"{MISSING} is not installed: NO PICTURE WAS LOOKED AT"
)

FAILING = Plan(3, "zab", "ack-before-fsync")


def record_of(plan: Plan) -> Record:
    """A run, recorded."""
    record = carry_out(plan, picture=True)[2]
    assert record is not None
    return record


def test_a_page_asks_for_nothing() -> None:
    """No address, no import, and a content policy that would refuse both."""
    text = page(record_of(FAILING))
    assert not re.search(r"https?://|src=|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text
    assert "@RECORD@" not in text
    assert "D1" in text


def test_a_label_cannot_end_the_record() -> None:
    """A path that looks like HTML stays text."""
    record = record_of(FAILING)
    record.events.append(Event(1, 1, "says", "</script><script>alert(1)</script>"))
    assert "</script><script>alert" not in page(record)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all of these claims."""
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        browser.size(1440, 860)
        yield browser


def shown(browser: Browser, plan: Plan, file: Path) -> Browser:
    """The browser with a picture of this run."""
    draw(record_of(plan), file)
    browser.dark(dark=False)
    browser.open(file)
    assert [line for line in browser.log() if line["level"] == "SEVERE"] == []
    return browser


def text(browser: Browser, where: str) -> str:
    """What an element says."""
    return str(browser.run("return document.querySelector(arguments[0]).innerText", where))


@in_a_browser
def test_the_broken_invariant_stands_on_top_and_is_chosen(browser: Browser, tmp_path: Path) -> None:
    """With why it happened, and what each member was then."""
    shown(browser, FAILING, tmp_path / "run.html")
    assert "D1 DurableBeforeAck is broken" in text(browser, "#verdict")
    assert "asked to propose 2" in text(browser, "#event")
    assert "DurableBeforeAck" in text(browser, "#said")
    members = text(browser, "#members")
    assert "leading" in members
    assert "logged 1:2, durable 0:0" in members


@in_a_browser
def test_the_keyboard_reaches_everything(browser: Browser, tmp_path: Path) -> None:
    """Steps, lanes, causes, ends, the violation; each is said to those who only listen."""
    shown(browser, FAILING, tmp_path / "run.html")
    browser.run("document.getElementById('picture').focus()")
    chosen = "return zabdPicture.chosen()"
    at_first = browser.run(chosen)
    said = text(browser, "#said")
    browser.press("\ue012")  # left
    before = browser.run(chosen)
    assert before < at_first
    assert text(browser, "#said") != said
    browser.press("\ue014")  # right
    assert browser.run(chosen) == at_first
    browser.press("w")
    assert browser.run(chosen) == browser.run(
        "return zabdPicture.record.cause[arguments[0]]", at_first
    )
    browser.press("\ue015")  # down
    lane = "return zabdPicture.record.lanes[zabdPicture.record.lane[zabdPicture.chosen()]]"
    below = browser.run(lane)
    browser.press("\ue013")  # up
    assert browser.run(lane) != below
    browser.press("\ue011")  # home
    assert browser.run(chosen) == browser.run("return zabdPicture.visible()[0]")
    browser.press("v")
    assert browser.run(chosen) == at_first


@in_a_browser
def test_filters_and_the_slider(browser: Browser, tmp_path: Path) -> None:
    """A kind that is switched off is gone; the slider goes through what is left."""
    shown(browser, Plan(5, "core"), tmp_path / "run.html")
    kinds = "return [...new Set(zabdPicture.visible().map((i) => zabdPicture.record.kind[i]))]"
    assert "message" in browser.run(kinds)
    browser.run(
        "for (const l of document.querySelectorAll('#kinds label'))"
        " if (l.textContent.startsWith('message')) l.querySelector('input').click()"
    )
    assert "message" not in browser.run(kinds)
    browser.run(
        "const s = document.getElementById('slider'); s.value = 10;"
        " s.dispatchEvent(new Event('input'))"
    )
    assert browser.run("return zabdPicture.chosen() === zabdPicture.visible()[10]")


@in_a_browser
def test_dark_is_dark(browser: Browser, tmp_path: Path) -> None:
    """The page and the canvas follow the system."""
    shown(browser, FAILING, tmp_path / "run.html")
    corner = (
        "const c = document.getElementById('picture'); zabdPicture.paint();"
        " return c.getContext('2d').getImageData(c.width - 3, c.height - 3, 1, 1).data[0]"
    )
    assert browser.run(corner) > 200
    browser.dark(dark=True)
    assert browser.run(corner) < 60


@in_a_browser
def test_twenty_thousand_events_are_drawn_in_time(browser: Browser, tmp_path: Path) -> None:
    """A step is drawn at once; the whole run, all of its events on one screen, is too."""
    record = record_of(Plan(5, "core"))
    begun = list(record.events)
    while len(record.events) < 20_000:
        offset, shift = len(record.events), record.events[-1].at_us + 1
        for event in begun:
            cause = event.cause + offset if event.cause >= 0 else -1
            sent_us = event.sent_us + shift if event.sent_us >= 0 else -1
            record.events.append(
                Event(event.at_us + shift, event.lane, event.kind, event.label, cause, sent_us)
            )
    draw(record, tmp_path / "run.html")
    browser.open(tmp_path / "run.html")
    took = (
        "const t = performance.now();"
        " for (let i = 0; i < 5; i++) { arguments[0] ? zabdPicture.fit()"
        " : zabdPicture.choose(zabdPicture.visible()[5000 + i]); zabdPicture.paint(); }"
        " return (performance.now() - t) / 5"
    )
    assert browser.run(took, False) < 500
    assert browser.run(took, True) < 1_000
