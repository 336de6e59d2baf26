"""Pytest plugin for operators: one test for each check, from a marker.

    @pytest.mark.operator(my_op, like=torch.nn.functional.silu)
    def test_my_op(operator_check):
        operator_check()

The marker takes the arguments of `conformance.check`. Pytest loads this module in every session, so it imports the
package's code only for tests with the marker.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

MARKER, FIXTURE = "operator", "operator_check"

RAN = pytest.StashKey[bool]()
"""Whether the body of a test came to its end, without an error and without a skip."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    text = f"{MARKER}(callable, *, like=None, ...): judge an operator, one test for each check; see conformance.check"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each check of the marker."""
    if FIXTURE not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker(MARKER)
    if mark is None or len(mark.args) != 1:
        text = f"{metafunc.definition.name} needs a marker with one callable: @pytest.mark.{MARKER}(op)"
        pytest.fail(text, pytrace=False)
    from conformance.record.errors import UserError

    try:
        metafunc.parametrize(FIXTURE, _request(mark).chosen(), indirect=True)
    except (UserError, TypeError) as error:
        pytest.fail(f"{metafunc.definition.name}: {error}", pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test with the marker that does not take the fixture: nothing would judge the operator."""
    if item.get_closest_marker(MARKER) is not None and FIXTURE not in getattr(item, "fixturenames", ()):
        text = f"{item.name} has the marker {MARKER} and judges nothing: write def {item.name}({FIXTURE}), and call it"
        pytest.fail(text, pytrace=False)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note a body that came to its end."""
    item.stash[RAN] = item.stash.get(RAN, False) or (call.when == "call" and call.excinfo is None)


def _request(mark: pytest.Mark) -> Any:
    from conformance.sources.operator.examine import CheckRequest

    options = {key: value for key, value in mark.kwargs.items() if value is not None}
    return CheckRequest(mark.args[0], near=getattr(mark.args[0], "__module__", ""), **options)


@functools.cache
def _judging(test: Callable[..., Any]) -> Any:
    from conformance.sources.operator.examine import Judging

    return Judging(_request(next(mark for mark in test.pytestmark if mark.name == MARKER)))  # type: ignore[attr-defined]


@pytest.fixture
def operator_check(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """A function that fails with the minimized script if the check finds a difference, and skips with the reason if it
    could not be judged. It fails if no check of the marker compared anything. A check that compared fewer inputs than
    planned, because the time was over, gives a warning, and with `strict=True` in the marker it fails. A test that does
    not call the function fails."""
    name, called = request.param, False

    def run() -> None:
        nonlocal called
        called = True
        from conformance.record.errors import UserError
        from conformance.sources.operator.examine import unfinished
        from conformance.sources.operator.finding import minimized
        from conformance.sources.operator.script import script

        try:
            judging = _judging(request.function)
            verdict = judging.verdict(name)
        except UserError as error:  # one sentence, in place of the way to it through this package
            pytest.fail(str(error), pytrace=False)
        said = unfinished([verdict], judging.request)
        if said and judging.request.strict:
            pytest.fail(said, pytrace=False)
        if verdict.excluded or not (verdict.finding or verdict.compared):
            if empty := judging.nothing_compared():
                pytest.fail(empty, pytrace=False)
            pytest.skip(verdict.reason)
        if verdict.finding is not None:
            pytest.fail(script(judging.trial, minimized(judging.trial, verdict.finding), carry=False), pytrace=False)
        if said:
            warnings.warn(said, stacklevel=2)

    yield run
    if request.node.stash.get(RAN, False) and not called:
        text = f"{request.node.name} takes {FIXTURE} and never calls it, so nothing is judged: write {FIXTURE}()"
        pytest.fail(text, pytrace=False)
