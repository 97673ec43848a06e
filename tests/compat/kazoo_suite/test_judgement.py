"""What is made of a run of kazoo's suite; neither a server nor kazoo is needed to tell."""

from tests.compat.kazoo_suite.judgement import Verdict, judge, known, not_run, table
from tests.compat.kazoo_suite.stand_in import zabd_arguments

NEW, OPEN = "kazoo/tests/test_x.py::T::test_new", next(iter(known("zabd")))


def verdict(test: str, outcome: str) -> Verdict:
    """How a test of no duration ended."""
    return Verdict(test, outcome, 1.0, "")


def test_a_failure_that_nobody_knows_of_is_not_acceptable() -> None:
    """Neither is a skip: a test that skips itself on zabd alone hides a difference."""
    for outcome in ("failed", "skipped"):
        judgement = judge("zabd", [verdict(NEW, outcome), verdict(OPEN, "failed")])

        assert judgement.unexpected == (NEW,)
        assert not judgement.acceptable


def test_what_is_open_may_fail_and_is_named() -> None:
    """The table says which, and why."""
    verdicts = [verdict(NEW, "passed"), verdict(OPEN, "failed")]
    judgement = judge("zabd", verdicts)

    assert judgement.acceptable
    assert f"open: {OPEN} ({known('zabd')[OPEN]})" in table("zabd", judgement, verdicts, {})


def test_what_is_open_and_passes_has_to_be_struck_out() -> None:
    """The record is never worse than the truth."""
    judgement = judge("zabd", [verdict(OPEN, "passed")])

    assert judgement.closed == (OPEN,)
    assert not judgement.acceptable


def test_the_reference_is_excused_from_less() -> None:
    """What is open here passes there, or it would be on the other list."""
    assert known("java").items() < known("zabd").items()
    assert not not_run("java")


def test_the_stand_in_takes_the_file_and_the_settings() -> None:
    """What else stands on a Java command line places logs and classes."""
    command = ["-cp", "a.jar", "-Dzookeeper.log.dir=/l", "-Dreadonlymode.enabled=true"]
    command += ["-Dzookeeper.DigestAuthenticationProvider.superDigest=super:x"]
    command += ["-Djava.security.auth.login.config=/data/jaas.conf"]
    command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", "/data/zoo.cfg"]

    assert zabd_arguments(command) == [
        "--config",
        "/data/zoo.cfg",
        "--set",
        "readonlymode.enabled=true",
        "--set",
        "zookeeper.DigestAuthenticationProvider.superDigest=super:x",
        "--set",
        "java.security.auth.login.config=/data/jaas.conf",
    ]
