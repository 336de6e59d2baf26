"""TorchCTS, a third-party conformance suite for PyTorch backends, on tiny."""

from __future__ import annotations

import pytest

from tests.clients import torchcts_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(torchcts_run.LIMIT_S + 300)]

SHARE = 0.99


@pytest.mark.parametrize("suite", torchcts_run.SUITES)
def test_suite(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 99 % of the tests that torchcts.toml does not except pass. A package that cannot be installed is a
    failure."""
    outcome = torchcts_run.run(suite)
    with capsys.disabled():
        print(f"\n{outcome}")
    assert outcome.judged, f"TorchCTS's suite {suite} ran nothing"
    assert not outcome.unneeded, "entries of torchcts.toml that no failing test needs any more"
    assert len(outcome.passed) >= SHARE * outcome.judged, outcome.failed
