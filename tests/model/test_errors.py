"""Each code has one exception, and each exception says what it is about."""

import pickle

import pytest

from zabd.model import (
    BadVersionError,
    ConnectionLossError,
    DamagedError,
    ErrorCode,
    KeeperError,
    LocalProtocolError,
    NoNodeError,
    RemoteProtocolError,
    SessionExpiredError,
    StorageError,
    ZabdError,
    error_for,
)

CODES = sorted(set(ErrorCode) - {ErrorCode.OK})


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_code_has_its_exception(code: ErrorCode) -> None:
    """Named after the code, and raised for it."""
    error = error_for(code)

    assert error.code is code
    # Python has a SystemError of its own.
    name = (
        code.name.title().replace("_", "").removesuffix("Error").replace("System", "KeeperSystem")
    )
    assert type(error).__name__ == f"{name}Error"
    assert str(error)


def test_no_two_exceptions_share_a_code() -> None:
    """The second one fails where it is written."""
    with pytest.raises(TypeError, match="NoNodeError has"):
        type("Impostor", (KeeperError,), {}, code=ErrorCode.NO_NODE)


@pytest.mark.parametrize("code", [0, 1, -9, -999])
def test_a_number_that_no_server_may_send_is_the_servers_fault(code: int) -> None:
    """Clients of other kinds break on it, too."""
    with pytest.raises(RemoteProtocolError, match=str(code)):
        error_for(code)


def test_an_error_says_what_was_asked_for() -> None:
    """Operation and path in front, the session behind."""
    error = NoNodeError(path="/a", operation="getData")
    lost = SessionExpiredError(session_id=-1)

    assert str(error).startswith("getData /a: The znode")
    assert (error.path, error.operation, error.session_id) == ("/a", "getData", None)
    assert str(lost).endswith("(session 0xffffffffffffffff)")


def test_a_sentence_of_its_own_is_kept() -> None:
    """Where the raiser knows better, it says better."""
    assert str(error_for(-103, "version 4, not 3", path="/a")) == "version 4, not 3"


def test_an_error_survives_pickling() -> None:
    """Across processes, such as pytest's workers, it is still the same."""
    error = pickle.loads(pickle.dumps(BadVersionError("no", path="/a")))  # noqa: S301 - our own

    assert (type(error), str(error), error.path) == (BadVersionError, "no", "/a")


def test_the_kinds_of_failure_do_not_mix() -> None:
    """Who catches answers does not catch misbehaviour, and the other way round."""
    assert issubclass(ConnectionLossError, KeeperError)
    assert issubclass(DamagedError, StorageError)
    for kind in (LocalProtocolError, RemoteProtocolError, StorageError):
        assert issubclass(kind, ZabdError)
        assert not issubclass(kind, KeeperError)
