import json
import os

import pytest
from click.testing import CliRunner

from zabd.cli.commands.dedup import RECORD_BYTES_MAX, output_of, recorded
from zabd.cli.ctl import cli
from zabd.cli.output import ExitStatus


@pytest.mark.parametrize("output", [b"", b"hej\n", "zażółć".encode(), bytes(range(256))])
def test_output_comes_back_byte_for_byte(output: bytes) -> None:
    """Text is kept as text, for people who look at the record; the rest as base64."""
    value = recorded(3, output)

    assert value["status"] == 3
    assert output_of(json.loads(json.dumps(value))) == output


@pytest.mark.parametrize("output", [b"x" * RECORD_BYTES_MAX, b"\0" * 20_000, os.urandom(60_000)])
def test_output_that_the_record_cannot_hold_is_left_out(output: bytes) -> None:
    """The status is kept all the same, or the command would run twice for being talkative."""
    value = recorded(0, output)

    assert value == {"status": 0, "stdout_omitted": True}
    assert output_of(value) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--payload", "-", "--payload-hash", "0" * 64],
        ["--payload-hash", "no digest"],
        ["--payload", "/no/such/file"],
        ["--base", "relative"],
    ],
)
def test_bad_options_are_wrong_usage(arguments: list[str]) -> None:
    """Before any session is opened, and before the command runs."""
    result = CliRunner().invoke(cli, ["dedup", *arguments, "k", "--", "true"])

    assert result.exit_code == ExitStatus.USAGE
