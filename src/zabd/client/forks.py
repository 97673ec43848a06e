"""Notices that this process is a fork of the one in which a client was made.

Two processes on one connection would answer each other's requests, and the child would close the
parent's session. So a child gets an error, whatever it asks.
"""

import os

from zabd.model.errors import LocalProtocolError

_count = 0


class ForkedClientError(LocalProtocolError):
    """The client belongs to the parent process; a child has to make its own."""


def fork_count() -> int:
    """How many forks lie between the first process and this one."""
    return _count


def require_same_process(then: int) -> None:
    """Raise if there was a fork since `fork_count` was `then`.

    Raises:
        ForkedClientError: there was.
    """
    if _count != then:
        raise ForkedClientError(
            "this client was made before a fork; make a new one in the child process"
        )


def _forked() -> None:
    global _count  # noqa: PLW0603 - it is the process's own, as a fork is
    _count += 1


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_forked)
