"""The path rule of section 8, and taking paths apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model import (
    BadArgumentsError,
    check_path,
    is_valid_path,
    join,
    name_of,
    parent_of,
    sequential_name,
)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a",
        "/a/b",
        "/.a",
        "/a.",
        "/...",
        "/a/..b",
        "/a b",
        "/é",
        "/日本",
        "/\ud7ff",
        "/\uf900",
    ],
)
def test_a_path_that_a_znode_may_have(path: str) -> None:
    """Dots, blanks and other alphabets are fine."""
    check_path(path)
    assert is_valid_path(path)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "empty"),
        ("a", "start"),
        ("a/b", "start"),
        ("/a/", "ends"),
        ("//", "ends"),
        ("//a", "empty component"),
        ("/a//b", "empty component"),
        ("/.", r"component '\.'"),
        ("/..", r"component '\.\.'"),
        ("/a/./b", r"component '\.'"),
        ("/a/../b", r"component '\.\.'"),
        ("/é/..", r"component '\.\.'"),
        ("/a\0", "U\\+0000"),
        ("/a\x1f", "U\\+001F"),
        ("/a\x7f", "U\\+007F"),
        ("/a\x9f", "U\\+009F"),
        ("/\ud800", "U\\+D800"),
        ("/\ue000", "U\\+E000"),
        ("/\uf8ff", "U\\+F8FF"),
        ("/\ufff0", "U\\+FFF0"),
        ("/\N{REPLACEMENT CHARACTER}", "U\\+FFFD"),
        ("/\uffff", "U\\+FFFF"),
        ("/\U0001f600", "U\\+1F600"),
    ],
)
def test_a_path_that_breaks_the_rule_is_told_which(path: str, rule: str) -> None:
    """The answer is BadArguments, and the message says what to mend."""
    with pytest.raises(BadArgumentsError, match=rule) as refused:
        check_path(path)

    assert refused.value.path == path
    assert not is_valid_path(path)


@given(st.text(st.sampled_from("/.a\0é\ud800"), max_size=8))
def test_the_quick_way_and_the_rule_agree(path: str) -> None:
    """The rule once more, said slowly."""
    components = path.split("/")[1:]
    expected = path == "/" or (
        path[:1] == "/"
        and all(component not in {"", ".", ".."} for component in components)
        and not set(path) & set("\0\ud800")
    )

    assert is_valid_path(path) == expected


@pytest.mark.parametrize("path", ["/a" * 100_000, "/é" * 100_000, "/" + "a" * 1_000_000])
def test_depth_and_length_are_not_limited_here(path: str) -> None:
    """Nothing recurses, so a hundred thousand levels are only long (P7)."""
    check_path(path)


def test_a_long_path_is_quoted_in_part() -> None:
    """A megabyte of somebody's path does not belong into a log."""
    with pytest.raises(BadArgumentsError) as refused:
        check_path("/" + "a" * 1_000_000 + "/")

    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("path", "parent", "name"),
    [("/a", "/", "a"), ("/a/b", "/a", "b"), ("/a/b/c", "/a/b", "c")],
)
def test_a_path_is_its_parent_and_its_name(path: str, parent: str, name: str) -> None:
    """Taken apart and joined again."""
    assert parent_of(path) == parent
    assert name_of(path) == name
    assert join(parent, name) == path


def test_the_root_is_its_own_parent() -> None:
    """And has no name."""
    assert parent_of("/") == "/"
    assert not name_of("/")


def test_what_has_no_slash_has_no_parent() -> None:
    """The rule about paths comes first; who skips it hears of it here."""
    with pytest.raises(ValueError, match="substring"):
        parent_of("a")


@pytest.mark.parametrize(
    ("counter", "name"),
    [
        (0, "/n-0000000000"),
        (42, "/n-0000000042"),
        (2**31 - 1, "/n-2147483647"),
        (2**31, "/n--2147483648"),
        (2**32 - 5, "/n--000000005"),
        (2**32, "/n-0000000000"),
    ],
)
def test_sequence_numbers_wrap_as_in_java(counter: int, name: str) -> None:
    """Ten digits of a signed 32-bit number, its sign among them (P24)."""
    assert sequential_name("/n-", counter) == name
