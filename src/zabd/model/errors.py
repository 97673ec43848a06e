"""Failures: the answers of the service, and the two kinds of misbehaviour.

A `KeeperError` is an answer that the service gives in place of a result, and `code` is what travels
on the wire (client protocol, section 5). `LocalProtocolError` is the caller's mistake and raises
before anything changes; `RemoteProtocolError` is the other side's and costs only that link. Storage
and configuration have their own. Nothing here stands for a bug of zabd: those are assertions.
"""

from enum import IntEnum
from typing import ClassVar, Final

from zabd.model.ids import SessionId, format_session


class ErrorCode(IntEnum):
    """Every code that may travel; clients fail on any other."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    NEW_CONFIG_NO_QUORUM = -13
    RECONFIG_IN_PROGRESS = -14
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    CLOSING = -116
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    REQUEST_TIMEOUT = -122
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124
    QUOTA_EXCEEDED = -125
    THROTTLED_OP = -127


class ZabdError(Exception):
    """Everything that zabd raises on purpose."""


class LocalProtocolError(ZabdError):
    """The caller asked for what the protocol does not allow; nothing has changed."""


class TooManyRequestsError(LocalProtocolError):
    """So many requests wait in the client that it takes no more; this one was not sent."""


class RemoteProtocolError(ZabdError):
    """The other side sent what the protocol does not allow; only its link has to go."""


class ConfigError(ZabdError):
    """A configuration that cannot be served; says which key, which value and what is allowed."""


class StorageError(ZabdError):
    """The disk did not do what a member needs to go on."""


class DamagedError(StorageError):
    """Bytes at rest are not the ones that were written, in a place where no crash explains it."""


_BY_CODE: Final[dict[int, type["KeeperError"]]] = {}


class KeeperError(ZabdError):
    """An answer the service gives in place of a result; `code` is what travels on the wire.

    `path`, `operation` and `session_id` say what was asked for, where that is known. A client that
    got no answer says with `maybe_applied` whether the write may have happened all the same, and
    with `op_index` which op of a multi an answer is about.
    """

    code: ClassVar[ErrorCode]
    maybe_applied: bool = False
    op_index: int | None = None

    def __init_subclass__(cls, *, code: ErrorCode) -> None:
        if code in _BY_CODE:
            raise TypeError(f"{cls.__name__} claims {code!r}, which {_BY_CODE[code].__name__} has")
        cls.code = code
        _BY_CODE[code] = cls

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        operation: str | None = None,
        session_id: SessionId | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.operation = operation
        self.session_id = session_id

    def __str__(self) -> str:
        sentence = self.args[0] or (type(self).__doc__ or "").partition("\n")[0]
        asked = " ".join(word for word in (self.operation, self.path) if word)
        session = f" (session {format_session(self.session_id)})" if self.session_id else ""
        # A sentence of its own names the path as it sees fit.
        return f"{asked}: {sentence}{session}" if asked and not self.args[0] else sentence + session


def error_for(
    code: int,
    message: str = "",
    *,
    path: str | None = None,
    operation: str | None = None,
    session_id: SessionId | None = None,
) -> KeeperError:
    """The exception for a code that came over the wire, ready to be raised.

    Raises RemoteProtocolError for a number that no server may send.
    """
    kind = _BY_CODE.get(code)
    if kind is None:
        raise RemoteProtocolError(f"the answer has the code {code}, which stands for no error")
    return kind(message, path=path, operation=operation, session_id=session_id)


class KeeperSystemError(KeeperError, code=ErrorCode.SYSTEM_ERROR):
    """The server failed in a way that has no code of its own."""


class RuntimeInconsistencyError(KeeperError, code=ErrorCode.RUNTIME_INCONSISTENCY):
    """The op of a multi was not tried, because one before it had failed."""


class DataInconsistencyError(KeeperError, code=ErrorCode.DATA_INCONSISTENCY):
    """The server found its data to be inconsistent."""


class ConnectionLossError(KeeperError, code=ErrorCode.CONNECTION_LOSS):
    """The link dropped before the reply: the operation may or may not have been applied."""


class MarshallingError(KeeperError, code=ErrorCode.MARSHALLING_ERROR):
    """The request's bytes are not the record that its type calls for."""


class UnimplementedError(KeeperError, code=ErrorCode.UNIMPLEMENTED):
    """The server knows no such operation, or has it switched off."""


class OperationTimeoutError(KeeperError, code=ErrorCode.OPERATION_TIMEOUT):
    """The reply did not come in time: the operation may or may not have been applied."""


class BadArgumentsError(KeeperError, code=ErrorCode.BAD_ARGUMENTS):
    """The path, the flags or another argument is not one that the operation accepts."""


class UnknownSessionError(KeeperError, code=ErrorCode.UNKNOWN_SESSION):
    """The ensemble knows no such session."""


class NewConfigNoQuorumError(KeeperError, code=ErrorCode.NEW_CONFIG_NO_QUORUM):
    """No quorum of the new configuration is connected and in sync."""


class ReconfigInProgressError(KeeperError, code=ErrorCode.RECONFIG_IN_PROGRESS):
    """Another reconfiguration is not finished yet."""


class ApiError(KeeperError, code=ErrorCode.API_ERROR):
    """An error of the API without a code of its own."""


class NoNodeError(KeeperError, code=ErrorCode.NO_NODE):
    """The znode, or the parent that it needs, does not exist."""


class NoAuthError(KeeperError, code=ErrorCode.NO_AUTH):
    """The ACL does not grant this connection what the operation needs."""


class BadVersionError(KeeperError, code=ErrorCode.BAD_VERSION):
    """The znode's version is not the one that the operation expects."""


class NoChildrenForEphemeralsError(KeeperError, code=ErrorCode.NO_CHILDREN_FOR_EPHEMERALS):
    """An ephemeral znode cannot have children."""


class NodeExistsError(KeeperError, code=ErrorCode.NODE_EXISTS):
    """The znode exists already."""


class NotEmptyError(KeeperError, code=ErrorCode.NOT_EMPTY):
    """The znode has children, so it cannot be deleted."""


class SessionExpiredError(KeeperError, code=ErrorCode.SESSION_EXPIRED):
    """The session is over, and its ephemerals and watches are gone with it."""


class InvalidCallbackError(KeeperError, code=ErrorCode.INVALID_CALLBACK):
    """The callback is not one that can be called."""


class InvalidAclError(KeeperError, code=ErrorCode.INVALID_ACL):
    """The ACL is empty, or an entry's scheme or id stands for nobody."""


class AuthFailedError(KeeperError, code=ErrorCode.AUTH_FAILED):
    """The server did not accept the credentials."""


class ClosingError(KeeperError, code=ErrorCode.CLOSING):
    """The client is being closed."""


class SessionMovedError(KeeperError, code=ErrorCode.SESSION_MOVED):
    """The session goes on through another server, and this connection is its old one."""


class NotReadOnlyError(KeeperError, code=ErrorCode.NOT_READ_ONLY):
    """The server has no quorum and only reads."""


class EphemeralOnLocalSessionError(KeeperError, code=ErrorCode.EPHEMERAL_ON_LOCAL_SESSION):
    """A session that only one server knows cannot own ephemerals."""


class NoWatcherError(KeeperError, code=ErrorCode.NO_WATCHER):
    """This connection has no such watch on the path."""


class RequestTimeoutError(KeeperError, code=ErrorCode.REQUEST_TIMEOUT):
    """The request was not answered in time: it may or may not have been applied."""


class ReconfigDisabledError(KeeperError, code=ErrorCode.RECONFIG_DISABLED):
    """Reconfiguration is switched off."""


class SessionClosedRequireSaslAuthError(
    KeeperError, code=ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH
):
    """The server wants the client to authenticate before anything else."""


class QuotaExceededError(KeeperError, code=ErrorCode.QUOTA_EXCEEDED):
    """The write would exceed a hard quota of a znode above."""


class ThrottledOpError(KeeperError, code=ErrorCode.THROTTLED_OP):
    """The request waited too long in the server's queue and was not executed."""
