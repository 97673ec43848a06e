"""kazoo's own suite is the judge of whether its users notice the difference."""

import os

import click
import pytest
from tests.compat.kazoo_suite.judgement import TESTS, judge, table
from tests.compat.kazoo_suite.suite import run, run_alone
from tests.compat.tools import needed

pytestmark = [pytest.mark.compat, pytest.mark.timeout(4000)]

SERVER = os.environ.get("COMPAT_SERVER", "zabd")


def test_no_test_fails_here_that_passes_on_zookeeper() -> None:
    """What is open is on record in `open.toml`, each with its reason."""
    verdicts = needed(lambda: run(SERVER))
    judgement = judge(SERVER, verdicts)

    click.echo(table(SERVER, judgement, verdicts, run_alone(SERVER, judgement.unexpected)))
    assert len(verdicts) == TESTS
    assert judgement.unexpected == ()
    assert judgement.closed == ()
