"""The documentation speaks of code that exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {path.name for path in (ROOT / "src" / "zabd").iterdir() if path.is_dir()}
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


def named_modules() -> list[str]:
    """The dotted names in the walks that begin with a room."""
    text = (ROOT / "docs" / "internals" / "walks.md").read_text("utf-8")
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text)
    return sorted({name for name in names if name.split(".")[0] in ROOMS})


@pytest.mark.parametrize("name", named_modules())
def test_every_module_of_the_walks_is_there(name: str) -> None:
    """Who follows a walk finds the module under its name."""
    assert importlib.import_module(f"zabd.{name}")


def test_the_walks_name_modules_at_all() -> None:
    """If the pattern above stopped matching, the claim would be empty."""
    assert len(named_modules()) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    """Relative links name files that exist, and headings that are there."""
    for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if heading and file.suffix == ".md":
            assert heading in anchors_of(file), f"{page.name} links to {target}#{heading}"


def anchors_of(page: Path) -> set[str]:
    """What its headings are called in links."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_is_reachable_from_the_index(page: Path) -> None:
    """A page that no other links to is a page that nobody reads."""
    linked = {
        (other.parent / target).resolve()
        for other in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", other.read_text("utf-8"))
    }
    assert page.name == "README.md" or page.resolve() in linked


BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]
SCRIPTS = [
    pytest.param(path.read_text("utf-8"), id=path.name)
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", BLOCKS + SCRIPTS)
def test_every_example_is_python_and_takes_what_is_on_offer(example: str) -> None:
    """A reader copies it, and then rests on every name that it imports."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(example, "example", "exec", flags=flags)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("zabd"):
            offered = importlib.import_module(str(node.module)).__all__
            assert {alias.name for alias in node.names} <= set(offered)


def test_there_are_examples_at_all() -> None:
    """If the pattern above stopped matching, the claim would be empty."""
    assert len(BLOCKS) > 15
    assert SCRIPTS
