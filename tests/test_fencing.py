"""The resources that the page on fencing shows do refuse late writes."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.documents import files_of

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "fencing.md"


@pytest.fixture
def shown() -> dict[str, Any]:
    """What the page's file defines."""
    names: dict[str, Any] = {}
    exec(compile(files_of(PAGE)["fencing.py"], "fencing.py", "exec"), names)  # noqa: S102 - ours
    return names


def test_a_row_is_not_overwritten_with_a_lower_token(shown: dict[str, Any]) -> None:
    """Equal is the same holder, greater a later one."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "create table payments (order_id text primary key, cents integer not null,"
            " fence integer not null)"
        )
        for cents, token in ((1, 7), (2, 7), (3, 9)):
            shown["pay"](database, "order-1", cents, token)
        with pytest.raises(shown["FencedError"]):
            shown["pay"](database, "order-1", 4, 8)
        shown["pay"](database, "order-2", 5, 8)  # another order is another resource
        rows = database.execute("select * from payments order by order_id").fetchall()
    assert rows == [("order-1", 3, 9), ("order-2", 5, 8)]


def test_a_register_refuses_lower_tokens(shown: dict[str, Any]) -> None:
    """The same in memory."""
    register = shown["Register"]()
    register.write("a", 7)
    register.write("b", 7)
    register.write("c", 9)
    with pytest.raises(shown["FencedError"]):
        register.write("late", 8)
    assert register.value == "c"
