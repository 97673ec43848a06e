from pathlib import Path

from zabd.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "zabctl.md"


def test_the_reference_says_what_the_help_says() -> None:
    """If not: python -m zabd.cli.reference > docs/reference/zabctl.md."""
    assert PAGE.read_text(encoding="utf-8").strip() == reference().strip()
