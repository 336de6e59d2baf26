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

@pytest.mark.operator(LIES["compile"]["operator"], like=torch.nn.functional.silu, checks=["compile"])
def test_compiled_lie(operator_check):
    operator_check()
"""


def outcome(pytester: pytest.Pytester, **files: str) -> str:
    """The report of a session with the plugin in a process of its own. The checks fork, and autograd may refuse that
    in this process."""
    pytester.makepyfile(**files)
    installed = {entry_point.value for entry_point in entry_points(group="pytest11")}
    load = [] if PLUGIN in installed else ["-p", PLUGIN]  # an installed package has loaded it
    ran = pytester.runpytest_subprocess("-rA", *load, "--strict-markers", "-p", "no:cacheprovider")
    return "\n".join([*ran.outlines, *ran.errlines])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.mark.slow
def test_one_test_for_each_check(pytester):
    """Checks pass, fail with the script, or are skipped with the reason. Regression test: pytest printed each record
    of torch's trace log below the script."""
    out = outcome(pytester, test_mine=SUITE)
    assert "PASSED test_mine.py::test_right[values]" in out and "PASSED test_mine.py::test_lie[dtype]" in out
    assert "the reference has gradients to compare with" in out
    assert "FAILED test_mine.py::test_lie[values]" in out and "import tests.planted.kernels" in out
    assert "FAILED test_mine.py::test_compiled_lie[compile]" in out and "torch.__trace" not in out


LATE = """
import pytest, torch
from tests.planted.kernels import right_silu

@pytest.mark.operator(right_silu, like=torch.nn.functional.silu, checks=["values", "blocks"], budget=1e-9)
def test_late(operator_check):
    operator_check()

@pytest.mark.operator(right_silu, like=torch.nn.functional.silu, checks=["gradcheck"])
def test_empty(operator_check):
    operator_check()

@pytest.mark.operator(right_silu, like=torch.nn.functional.silu, checks=["blocks"], budget=1e-9, strict=True)
def test_strict(operator_check):
    operator_check()

INPUTS = {"x": "float32[n]", "sizes": {"n": "1..9"}}

@pytest.mark.operator(torch.neg, reference=lambda x: 1 / 0, inputs=INPUTS, checks=["values"])
def test_raises(operator_check):
    operator_check()

@pytest.mark.operator(torch.neg, reference=torch.neg, inputs=INPUTS, checks=["empty"])
def test_none(operator_check):
    operator_check()

@pytest.mark.operator(lambda x: x.numpy(), reference=torch.neg, inputs=INPUTS, checks=["values"])
def test_numpy(operator_check):
    operator_check()
"""


def test_a_check_without_time(pytester):
    """It is skipped with the number of inputs, and fails with `strict=True`. A marker whose checks all compare nothing
    fails."""
    out = outcome(pytester, test_mine=LATE)
    assert "PASSED test_mine.py::test_late[blocks]" not in out and "inputs, the time was over" in out
    assert "FAILED test_mine.py::test_late" not in out and "FAILED test_mine.py::test_strict[blocks]" in out
    assert "inputs of blocks (budget=1e-09); --strict makes this a failure." in out
    assert "FAILED test_mine.py::test_empty[gradcheck]" in out and "nothing was compared" in out
    assert "FAILED test_mine.py::test_raises[values] - Failed: the reference raises" in out
    assert all(f"FAILED test_mine.py::test_none[{check}]" in out for check in ("empty", "crash", "hang", "memory"))
    assert "FAILED test_mine.py::test_numpy[values]" in out and "PASSED test_mine.py::test_numpy[crash]" in out
    assert "result should be a Tensor and is a numpy.ndarray" in out and "Traceback" not in out


def test_a_wrong_marker(pytester):
    """The error names the test, and the nearest name of a check."""
    unmarked, misspelt = "def test_mine(operator_check): operator_check()\n", SUITE.replace('"gradcheck"', '"gradchek"')
    out = outcome(pytester, test_unmarked=unmarked, test_misspelt=misspelt)
    assert "test_mine needs a marker with one callable" in out
    assert "test_right: unknown check 'gradchek'; did you mean gradcheck" in out
    assert "pytest_plugin.py" not in out  # one sentence, without the way to it


UNJUDGED = """
import pytest, torch, unittest

MARK = pytest.mark.operator(torch.exp, like=torch.exp, checks=["accuracy"])

@MARK
def test_without():
    pass

@MARK
def test_uncalled(operator_check):
    pass

@MARK
def test_skipped(operator_check):
    pytest.skip("not here")

@MARK
def test_failed(operator_check):
    assert False, "before the call"

@pytest.fixture
def judged(operator_check):
    yield
    operator_check()

@MARK
def test_at_teardown(judged):
    pass

class TestOfUnittest(unittest.TestCase):
    @MARK
    def test_method(self):
        pass
"""


def test_a_marker_that_judges_nothing_fails(pytester):
    """Regression test: a test that did not take the fixture, or did not call it, passed. A test that is skipped or
    fails before the call says so already."""
    out = outcome(pytester, test_mine=UNJUDGED)
    for name in ("test_without", "test_method"):
        assert (
            f"{name} has the marker operator and judges nothing: write def {name}(operator_check), and call it" in out
        )
    assert "test_uncalled[accuracy] takes operator_check and never calls it, so nothing is judged" in out
    assert out.count("never calls it") == out.count("test_uncalled[accuracy] takes")
    assert "1 failed, 2 passed, 1 skipped, 3 errors" in out and "pytest_plugin.py" not in out
