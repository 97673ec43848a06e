"""The pages of the lessons, beside what the lessons tell when they run.

`python -m tests.lessons` puts into each page what its lesson says now.
"""

import re
from pathlib import Path

from click.testing import CliRunner

from zabd.cli.ctl import cli
from zabd.cluster_sim.lessons import LESSONS

FOLDER = Path(__file__).parent.parent / "docs" / "lessons"

_OUTPUT = re.compile(
    r"(```console\n\$ zabctl sim lesson [a-z-]+\n```\n\n```text\n)(.*?)(```)", re.DOTALL
)


def page_of(name: str) -> Path:
    """Where the page of a lesson is."""
    return FOLDER / f"{[*LESSONS].index(name) + 1:02}-{name}.md"


def output_of(name: str, *options: str) -> str:
    """What the command of a lesson prints, after its question."""
    result = CliRunner().invoke(cli, ["sim", "lesson", name, *options])
    assert result.exit_code == 0, result.output
    _question, _, told = result.stdout.partition("\n\n")
    return told


def shown_in(text: str) -> str:
    """The output that a page shows."""
    found = _OUTPUT.search(text)
    assert found is not None, "a page has the command of its lesson, and then what it prints"
    return found[2]


if __name__ == "__main__":
    for each in LESSONS:
        page = page_of(each)
        told = output_of(each)
        page.write_text(
            _OUTPUT.sub(
                lambda found, told=told: found[1] + told + found[3], page.read_text("utf-8")
            ),
            "utf-8",
        )
