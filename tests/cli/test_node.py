import click
import pytest
from click.testing import CliRunner

from zabd.cli.commands.node import parse_acl
from zabd.cli.ctl import cli
from zabd.cli.output import ExitStatus, text_or_base64
from zabd.model.acl import Acl, Perms


@pytest.mark.parametrize(
    ("text", "acl"),
    [
        ("world:anyone:cdrwa", Acl(31, "world", "anyone")),
        ("world:anyone:r", Acl(int(Perms.READ), "world", "anyone")),
        ("digest:ada:c2VjcmV0:rw", Acl(3, "digest", "ada:c2VjcmV0")),
        ("auth::cdrwa", Acl(31, "auth", "")),
    ],
)
def test_an_acl_is_read_as_zkcli_writes_it(text: str, acl: Acl) -> None:
    """The id may hold colons, as a digest's does; the permissions come last."""
    assert parse_acl(text) == acl


@pytest.mark.parametrize("text", ["world", "world:anyone", "world:anyone:x", ":anyone:r", "a:b:"])
def test_what_is_no_acl_is_refused(text: str) -> None:
    """Before anything is sent."""
    with pytest.raises(click.BadParameter):
        parse_acl(text)


def test_data_that_is_text_stays_text_in_json() -> None:
    """And what is not becomes base64 under another name, so that nobody takes it for text."""
    assert text_or_base64(b"hej") == {"data": "hej"}
    assert text_or_base64(b"\xff") == {"data_base64": "/w=="}
    assert text_or_base64(None) == {"data": None}


def test_the_root_is_not_deleted() -> None:
    """Not even with -r: the mistake would be a variable that is empty."""
    result = CliRunner().invoke(cli, ["delete", "-r", "/"])

    assert result.exit_code == ExitStatus.REFUSED


def test_a_set_without_data_is_wrong_usage() -> None:
    """An empty znode is asked for with an empty argument."""
    assert CliRunner().invoke(cli, ["set", "/a"]).exit_code == ExitStatus.USAGE


def test_data_is_given_once() -> None:
    """Which of two would be meant?"""
    result = CliRunner().invoke(cli, ["set", "/a", "x", "--data", "-"], input="y")

    assert result.exit_code == ExitStatus.USAGE
