"""Each lesson does what it tells, and its page says the same."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.lessons import FOLDER, output_of, page_of, shown_in

from zabd.cli.ctl import cli
from zabd.cluster_sim.lessons import LESSONS
from zabd.cluster_sim.resource import Resource

pytestmark = pytest.mark.sim

INSTANT = re.compile(r"^ *([0-9.]+) s", re.MULTILINE)
PAGES = {name: page_of(name) for name in LESSONS}


def told(page: str) -> dict[str, list[object]]:
    """The record that a picture holds."""
    found = re.search(r'id="record">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    record: dict[str, list[object]] = json.loads(found[1])
    return record


def in_words(text: str) -> str:
    """A text without its line breaks and marks of a quotation."""
    return " ".join(text.replace("\n> ", " ").split())


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_happens_as_its_page_shows(name: str) -> None:
    """Its own asserts hold, and every line that it prints stands on its page.

    Instants may differ a little: they move with every change of the protocol's timing.
    """
    came, shown = output_of(name), shown_in(PAGES[name].read_text("utf-8"))
    assert INSTANT.sub("", came) == INSTANT.sub("", shown), "python -m tests.lessons rewrites it"
    instants = zip(INSTANT.findall(came), INSTANT.findall(shown), strict=True)
    assert all(abs(float(now) - float(then)) < 0.5 for now, then in instants)


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_asks_first_and_folds_the_answer(name: str) -> None:
    """The question is that of the lesson, the answer comes after it, and the code is linked."""
    text = PAGES[name].read_text("utf-8")
    question = in_words(text).index(LESSONS[name].question)
    assert question < in_words(text).index("<details>")
    assert text.index("</details>") < text.index(f"$ zabctl sim lesson {name}\n")
    assert f"$ zabctl sim lesson {name} --html " in text
    assert f"cluster_sim/lessons/{name.replace('-', '_')}.py)" in text
    assert text.startswith(f"# {[*LESSONS].index(name) + 1}. {LESSONS[name].title}\n")


def test_every_lesson_has_a_page_and_is_in_the_index() -> None:
    """In their order, with their questions; and no page is of a lesson that is gone."""
    index = (FOLDER / "README.md").read_text("utf-8")
    places = [index.index(f"]({page.name})") for page in PAGES.values()]
    assert places == sorted(places)
    pages = {page.name for page in FOLDER.glob("[0-9]*.md")}
    assert pages == {page.name for page in PAGES.values()}
    listed = CliRunner().invoke(cli, ["sim", "lessons", "--json"]).stdout.splitlines()
    assert [json.loads(line)["name"] for line in listed] == [*LESSONS]


def test_the_answers_are_each_shown_by_a_lesson() -> None:
    """Every section of the page of answers names a command, and the lesson exists."""
    text = (FOLDER / "answers.md").read_text("utf-8")
    sections = text.split("\n## ")[1:]
    assert len(sections) >= 6
    for section in sections:
        names = re.findall(r"zabctl sim lesson ([a-z-]+)", section)
        assert names, section.splitlines()[0]
        assert set(names) <= set(LESSONS)


def test_the_picture_shows_what_clients_see_and_hold(tmp_path: Path) -> None:
    """Requests, replies with zxids, watches, sessions, locks with tokens, and what was refused."""
    output_of("paused-holder", "--html", str(tmp_path / "run.html"))
    for number, word in enumerate(("takes late", "refuses")):
        name = "run-2.html" if number else "run.html"
        record = told((tmp_path / name).read_text("utf-8"))
        events = list(zip(record["kind"], record["label"], strict=True))
        labels = {kind: [str(label) for k, label in events if k == kind] for kind, _ in events}
        assert any(label.startswith("create ") for label in labels["ask"])
        assert any("done at 1:" in label for label in labels["reply"])
        assert any("and watch" in label for label in labels["ask"])
        assert any("deleted" in label for label in labels["watch"])
        assert any("lost" in label for label in labels["session"])
        assert len(labels["lock"]) == 2
        assert "first goes on" in labels["note"]
        assert any(f"the resource {word} token" in label for label in labels["fence"])
        spans = {str(span[3]).partition(" ")[0] for span in record["spans"]}  # type: ignore[index]
        assert {"session", "lock", "paused"} <= spans


def test_a_lesson_can_be_taken_away_and_changed(tmp_path: Path) -> None:
    """What --source prints runs from a file; an assert that does not hold any more is told."""
    source = CliRunner().invoke(cli, ["sim", "lesson", "epochs", "--source"]).stdout
    mine = tmp_path / "mine.py"
    mine.write_text(source, "utf-8")
    assert output_of(str(mine)) == output_of("epochs")
    mine.write_text(source.replace("[1, 2, 3, 4]", "[1, 2, 3, 9]"), "utf-8")
    result = CliRunner().invoke(cli, ["sim", "lesson", str(mine)])
    assert result.exit_code == 1
    assert "m3 leads epoch 1" in result.output
    assert "not so: " in result.output


@pytest.mark.parametrize("name", ["nothing", "absent.py", "empty.py"])
def test_what_is_no_lesson_is_refused(name: str, tmp_path: Path) -> None:
    """With a sentence and the exit status of a wrong usage."""
    if name == "empty.py":
        (tmp_path / name).write_text("", "utf-8")
        name = str(tmp_path / name)
    result = CliRunner().invoke(cli, ["sim", "lesson", name])
    assert result.exit_code == 2
    assert "name" in result.output


def test_a_resource_without_fencing_counts_what_it_should_have_refused() -> None:
    """It keeps the highest token all the same."""
    plain, fenced = Resource(fenced=False), Resource()
    assert [plain.write(token) for token in (1, 3, 2)] == [True, True, True]
    assert [fenced.write(token) for token in (1, 3, 2)] == [True, True, False]
    assert (plain.late, plain.token, fenced.refused) == (1, 3, 1)


def test_a_picture_of_disorder_names_what_came_too_early(tmp_path: Path) -> None:
    """The labels beside the pieces overtake each other as the pieces do."""
    output_of("fifo-links", "--html", str(tmp_path / "run.html"))
    record = told((tmp_path / "run-2.html").read_text("utf-8"))
    [early] = re.findall(r"hears a proposal of (\S+) after", str(record["failure"]["detail"]))  # type: ignore[call-overload]
    messages = [
        str(label)
        for kind, label in zip(record["kind"], record["label"], strict=True)
        if kind == "message"
    ]
    assert messages[-1] == f"from m3: Propose {early}"
