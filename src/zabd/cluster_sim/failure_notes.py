"""What a failed experiment tells: the seed, where each program stands, what came last."""

import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_LIBRARY: Final = str(Path(__file__).parents[1])  # zabd itself
_TRACE_LINES: Final = 20


def notes(
    seed: int, experiment: str, tasks: Iterable[tuple[str, "asyncio.Task[Any]"]], tail: list[str]
) -> Iterator[str]:
    """The lines that go below the error; `tasks` are the programs that have not ended."""
    yield f"simulated from seed {seed}: simulate({experiment}, seed={seed}, ...) is the same run,"
    yield 'and with html="run.html" it draws the run as a page'
    for name, task in tasks:
        where = _where(task)
        if where is not None:
            yield f"{name} waits at {where}"
    yield "the last lines of its trace:"
    yield "\n".join(tail[-_TRACE_LINES:])


def _where(task: "asyncio.Task[Any]") -> str | None:
    """The innermost line of the user's own code that a task is suspended in."""
    frames = [frame for frame in _frames(task.get_coro()) if _is_of_a_user(frame)]
    if not frames:
        return None
    file, number = frames[-1].f_code.co_filename, frames[-1].f_lineno
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"


def _frames(coro: Any) -> Iterator[FrameType]:  # noqa: ANN401 - whatever awaits whatever
    while isinstance(coro, CoroutineType) and coro.cr_frame is not None:
        yield coro.cr_frame
        coro = coro.cr_await


def _is_of_a_user(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(_LIBRARY) and Path(file).parent.name != "asyncio"
