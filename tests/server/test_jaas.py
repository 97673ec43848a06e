"""The file with the users of SASL, as ZooKeeper's server has it."""

from pathlib import Path

import pytest

from zabd.server.jaas import parse_users, read_users

TEXT = """
// Who may connect.
Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="bob"; };
Server {
    com.sun.security.auth.module.Krb5LoginModule optional user_mallory="x";
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_super="adminsecret" /* "quoted" */
        user_bob="a \\"b\\"; c";
};
"""


def test_the_section_server_names_the_users() -> None:
    """Other sections are for other programs, other modules for other mechanisms."""
    users = parse_users(TEXT)
    assert users is not None
    assert dict(users) == {"super": "adminsecret", "bob": 'a "b"; c'}


@pytest.mark.parametrize("text", ["", "// nothing\n", 'Client { X required a="b"; };'])
def test_without_a_section_there_is_no_sasl(text: str) -> None:
    """A JVM's file need not be about the server."""
    assert parse_users(text) is None


@pytest.mark.parametrize(
    "text",
    ["Server", "Server {", "Server { X required user_bob secret; };", 'Server { X "secret', "a b"],
)
def test_what_is_no_jaas_file_is_refused_without_its_passwords(text: str) -> None:
    """The error names what was expected, and shows nothing that may be a secret."""
    with pytest.raises(ValueError, match=r"expected|ends|quote") as raised:
        parse_users(text)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """It is better not to start than to start without what was asked for."""
    with pytest.raises(ValueError, match="No such file"):
        read_users(str(tmp_path / "none"))
