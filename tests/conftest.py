"""Settings shared by every room's tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A slow or busy machine must not fail a property: time is no part of any claim made here.
_PATIENT = (HealthCheck.too_slow,)

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_PATIENT)
settings.register_profile(
    "ci",
    max_examples=200,
    deadline=None,
    derandomize=True,  # the verdict on a commit does not change from one run to the next
    print_blob=True,
    suppress_health_check=_PATIENT,
)
settings.register_profile(
    "deep", max_examples=10_000, deadline=None, suppress_health_check=_PATIENT
)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-traces` takes what happened for what should happen; the diff is then reviewed."""
    parser.addoption("--rewrite-traces", action="store_true", help="rewrite expected transcripts")
