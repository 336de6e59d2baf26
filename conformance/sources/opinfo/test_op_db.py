"""Pytest items, one per case of op_db, with ids like `add::float32::inplace::transposed`; see `pytest_plugin.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.declare import expectations
from conformance.record.result import RERUN, UNEXPECTED, Outcome
from conformance.report.escape import escape_control_characters
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.pytest_plugin import EXPECTED, POOL

pytestmark = pytest.mark.timeout(0)


def test_op(opinfo_case: Case, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]) -> None:
    """The target agrees with torch CPU, or with the expectations."""

    pool, expected = pytestconfig.stash[POOL], pytestconfig.stash[EXPECTED]
    (result,) = (expectations.judged(result, expected) for result in pool.run([opinfo_case]))
    for _ in range(pytestconfig.option.rerun_failures):
        if result.outcome in RERUN and next(pool.run([opinfo_case])).outcome is Outcome.PASS:
            result = result.flaky()
    record_property("outcome", str(result.outcome))
    if result.outcome in UNEXPECTED:
        lines = [f"{result.outcome} {result.reason}".rstrip()]
        lines += map(str, result.failures)
        lines += [failure.script for failure in result.failures[:1]]
        pytest.fail(escape_control_characters("\n".join(lines)), pytrace=False)
    if result.outcome is Outcome.XFAIL:
        pytest.xfail(escape_control_characters(result.reason))
    if result.outcome is Outcome.SKIP:
        pytest.skip(escape_control_characters(result.reason))
