"""Errors that name operation, path and session, and say whether a write may have happened."""

from zabd.client.chroot import Chroot
from zabd.model.errors import (
    AuthFailedError,
    ClosingError,
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    OperationTimeoutError,
    SessionExpiredError,
    error_for,
)
from zabd.model.ids import SessionId, format_session
from zabd.model.ops import WRITE_OPCODES, Multi, Op


class Failures:
    """Makes the errors of one session; paths are shown without the chroot."""

    def __init__(self, chroot: Chroot) -> None:
        self.session_id: SessionId = 0
        self.auth_error: AuthFailedError | None = None  # why the session has ended, if it is that
        self._chroot = chroot

    def answer(self, code: int, op: Op) -> KeeperError:
        """The service answered with a code in the place of a result."""
        return error_for(
            code, path=self._path(op), operation=name_of_op(op), session_id=self.session_id
        )

    def lost_reply(self, op: Op, reason: str) -> ConnectionLossError:
        """The connection ended before the answer."""
        error = ConnectionLossError(
            f"{self._asked(op)}: no reply came, {reason}",
            path=self._path(op),
            operation=name_of_op(op),
            session_id=self.session_id,
        )
        error.maybe_applied = op.opcode in WRITE_OPCODES
        return error

    def expired(self, op: Op | None, *, sent: bool) -> KeeperError:
        """The session ended before the answer; `None` stands for an auth packet."""
        if self.auth_error is not None:
            return AuthFailedError(f"{self._asked(op)}: {self.auth_error}")
        error = SessionExpiredError(
            f"{self._asked(op)}: the session {format_session(self.session_id)} is over",
            path=self._path(op),
            operation=name_of_op(op),
            session_id=self.session_id,
        )
        error.maybe_applied = sent and op is not None and op.opcode in WRITE_OPCODES
        return error

    def too_large(self, op: Op | None, size: int, limit: int) -> LocalProtocolError:
        """A request is larger than a server takes."""
        return LocalProtocolError(
            f"{self._asked(op)}: a request of {size} bytes, where the servers take {limit}: store"
            " less in one znode and ask for less in one transaction, or raise `request_bytes_max`"
            " here and jute.maxbuffer on every server"
        )

    def refused_credentials(self, scheme: str) -> AuthFailedError:
        """The service does not take what was offered with `add_auth`."""
        return AuthFailedError(
            f"the server does not accept these {scheme} credentials, which are not offered again",
            operation="add_auth",
            session_id=self.session_id,
        )

    def closing(self, op: Op) -> ClosingError:
        """A request came when the client was being closed."""
        return ClosingError(
            f"{self._asked(op)}: the client is being closed",
            path=self._path(op),
            operation=name_of_op(op),
            session_id=self.session_id,
        )

    def other_session(self, op: Op, session_id: SessionId) -> SessionExpiredError:
        """A request bound to a session met another one."""
        return SessionExpiredError(
            f"{self._asked(op)}: bound to session {format_session(session_id)}, which is over;"
            f" the client has {format_session(self.session_id)} now",
            path=self._path(op),
            operation=name_of_op(op),
            session_id=session_id,
        )

    def timed_out(
        self, op: Op | None, limit: float | None, state: str, *, sent: bool
    ) -> OperationTimeoutError:
        """The caller's deadline passed before the answer."""
        error = OperationTimeoutError(
            f"{self._asked(op)}: no answer within {limit} s while {state}"
            f" (session {format_session(self.session_id)})",
            path=self._path(op),
            operation=name_of_op(op),
            session_id=self.session_id,
        )
        error.maybe_applied = sent and op is not None and op.opcode in WRITE_OPCODES
        return error

    def _asked(self, op: Op | None) -> str:
        return " ".join(word for word in (name_of_op(op), self._path(op)) if word)

    def _path(self, op: Op | None) -> str | None:
        path = path_of_op(op)
        return None if path is None else self._chroot.to_user(path)


def path_of_op(op: Op | None) -> str | None:
    """The path an op is about, of a multi that of its first op."""
    if isinstance(op, Multi):
        return path_of_op(op.ops[0]) if op.ops else None
    path = getattr(op, "path", None)
    return path if isinstance(path, str) else None


def name_of_op(op: Op | None) -> str:
    """The op's name in an error."""
    return "add_auth" if op is None else op.opcode.name.lower()
