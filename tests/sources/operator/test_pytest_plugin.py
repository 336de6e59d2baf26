"""The marker `operator`: one test for each check."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

PLUGIN = "conformance.sources.operator.pytest_plugin"

SUITE = """
import pytest, torch
from tests.planted.kernels import LIES, right_silu

@pytest.mark.operator(right_silu, like=torch.nn.functional.silu, checks=["values", "gradcheck"])
def test_right(operator_check):
    operator_check()

@pytest.mark.operator(LIES["values"]["operator"], like=torch.nn.functional.silu, checks=["values", "dtype"])
def test_lie(operator_check):
    operator_check()
"""


def outcome(pytester: pytest.Pytester, suite: str) -> str:
    """The report of a session with the plugin in a process of its own. The checks fork, and autograd may refuse that
    in this process."""
    pytester.makepyfile(test_mine=suite)
    found = {one.value for one in entry_points(group="pytest11")}
    load = [] if PLUGIN in found else ["-p", PLUGIN]  # an installed package has loaded it
    ran = pytester.runpytest_subprocess("-rA", *load, "--strict-markers", "-p", "no:cacheprovider")
    return "\n".join([*ran.outlines, *ran.errlines])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def test_one_test_for_each_check(pytester):
    """Checks pass, fail with the script, or are skipped with the reason."""
    out = outcome(pytester, SUITE)
    assert "PASSED test_mine.py::test_right[values]" in out and "PASSED test_mine.py::test_lie[dtype]" in out
    assert "the reference has gradients to compare with" in out
    assert "FAILED test_mine.py::test_lie[values]" in out and "import tests.planted.kernels" in out


def test_a_marker_without_a_callable(pytester):
    """The error names the test."""
    out = outcome(pytester, "def test_mine(operator_check): operator_check()\n")
    assert "test_mine needs a marker with one callable" in out
    wrong = SUITE.replace('"gradcheck"', '"gradchek"')
    assert "test_right: unknown check 'gradchek'; did you mean gradcheck" in outcome(pytester, wrong)


def test_a_failure_prints_no_log_of_dynamo(pytester):
    """Regression test: pytest printed each record of torch's trace log below the script."""
    out = outcome(pytester, SUITE.replace('LIES["values"]', 'LIES["compile"]').replace('"dtype"', '"compile"'))
    assert "FAILED test_mine.py::test_lie[compile]" in out and "torch.__trace" not in out
