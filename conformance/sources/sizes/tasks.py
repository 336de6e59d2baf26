"""The tasks of `conformance sizes`: measure one case and return its result.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.record.errors import TargetError
from conformance.record.footprint import Footprint
from conformance.record.result import Failure, Outcome, Result
from conformance.record.sentences import sentence
from conformance.run.worker import environment_and_dtypes, loaded
from conformance.sources.accuracy.tasks import judged_by
from conformance.sources.sizes.table import SizesCase

if TYPE_CHECKING:
    from conformance.standalone.sizes import MeasuredCall

MODULES = (__name__, "conformance.sources.sizes.script")


def describe_environment(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the target's environment, and the dtypes that it holds (None: all). Raises TargetError if it cannot be
    used or has no values to compare, or if peak memory cannot be measured on this machine.
    """
    under_test = loaded(target)
    if not under_test.facts.shows_values:
        raise TargetError(
            f"target {target!r} computes nothing, so it takes no memory: choose one that computes, such as device:NAME "
            "or compile:NAME"
        )
    from conformance.standalone.sizes import begin_peak

    try:
        begin_peak()
    except (OSError, AttributeError) as error:
        raise TargetError(
            f"peak memory cannot be measured on this system ({error}): it needs Linux's /proc/self/clear_refs and "
            "glibc's malloc_trim, so run this command on Linux with glibc"
        ) from None
    return environment_and_dtypes(target)


def run(target: str, case: SizesCase) -> Result:
    """Return the case's result."""
    from conformance.sources.sizes.measure import measure
    from conformance.sources.sizes.script import standalone

    return judged_by(judge_measured, measure, "torch CPU", target, case, standalone)


def judge_measured(case: SizesCase, setup: str, sides: tuple[MeasuredCall, MeasuredCall]) -> Result:
    """Return the result of a case that both sides, torch CPU and the target, have answered."""
    from conformance.sources.sizes.script import standalone
    from conformance.standalone.sizes import faults

    cpu, got = sides
    wrong = faults(cpu, got)
    failed = tuple(Failure(*words, call=case.row.call) for words in wrong)
    script = standalone(case, setup, f"{case.id}: {sentence(failed[0])}") if failed else ""
    failures = tuple(replace(failure, script=script) for failure in failed)
    footprint = Footprint(cpu.held, got.peak, cpu.peak, round(got.seconds, 3), round(cpu.seconds, 3))
    outcome = Outcome.FAIL if failures else Outcome.PASS
    return case.result(outcome, samples=1, failed=len(failures[:1]), failures=failures, footprint=footprint)
